"""`monotile.load_packed`: a model with the weights of a checkpoint that others packed."""

import math
from collections.abc import Container, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from monotile.errors import InputError
from monotile.packing.awq import read_awq
from monotile.packing.bitsandbytes import STATE, read_nf4
from monotile.packing.blocks import names_of_blocks, read_blocks
from monotile.packing.files import Checkpoint, read_checkpoint
from monotile.packing.gptq import read_gptq
from monotile.packing.layer import PackedLinear, PackedMatrix
from monotile.packing.layers import dense_weight, is_linear, replace_in
from monotile.packing.pack import packed_bytes, report, size_of
from monotile.packing.parts import HALVES, PackedWeight, Parts
from monotile.packing.report import PackedRow, PackingReport
from monotile.packing.stacks import hold

MARKS = ("qweight", STATE)  # each packed layer has one of these tensors
SHOWN = 5  # names in a message


def load_packed(model: nn.Module, checkpoint: str | Path | Mapping[str, Tensor]) -> nn.Module:
    """The model, changed, with the checkpoint's tensors: layers that are packed there become `PackedLinear`, all else is assigned.

    model:      the architecture as the checkpoint names it; it may be on the meta device, but for buffers that no state dict has.
    checkpoint: of GPTQ (2, 4 or 8 bits), AWQ, bitsandbytes (NF4) or GPT-OSS (experts in MXFP4): a file or a folder of .safetensors, or a
                state dict.

    Each weight is what the source's definition decodes to. Tensors keep the checkpoint's dtypes and device; `to` changes them
    afterwards. The model's `packing` is its PackingReport, without errors, as dense weights are not known.
    Raises InputError, and changes nothing, for tensors that are missing, of other shapes, or not the model's.
    """
    source = read_checkpoint(checkpoint)
    rest, packed = dict(source.tensors), dict[str, PackedLinear]()
    for name in _packed_names(source.tensors):
        packed[name] = _layer(model, name, source, rest)
    stacks = {name: read_blocks(model, name, rest) for name in names_of_blocks(source.tensors)}
    if not packed and not stacks:
        raise InputError(
            "the checkpoint has no packed layers of GPTQ, AWQ or bitsandbytes (NF4), and no experts in MXFP4: load it by load_state_dict"
        )
    ties = _ties(model, packed, rest)
    _check_rest(model, {*packed, *stacks}, rest, ties)
    replace_in(model, {model.get_submodule(name): layer for name, layer in packed.items()})
    for stack, made in stacks.values():
        hold(stack.module, stack.name, made)
    found = packed.get("", model)
    if found is model:
        model.load_state_dict(rest, strict=False, assign=True)
        for name, other in ties.items():
            parent, _, own = name.rpartition(".")
            model.get_submodule(parent).register_parameter(own, model.get_parameter(other))
    rows = (
        *(_row(name, layer, layer.shape) for name, layer in packed.items()),
        *(_row(name, made, made.matrices) for name, (_, made) in stacks.items()),
    )
    after = size_of(found)
    before = after + sum(r.before - r.after for r in rows)
    report(found, PackingReport(rows, {}, before, after))
    return found


def _packed_names(tensors: Mapping[str, Tensor]) -> list[str]:
    names = [key.removesuffix(m) for key in tensors for m in MARKS if f".{key}".endswith(f".{m}")]
    return [name.removesuffix(".") for name in names]


def _layer(
    model: nn.Module, name: str, source: Checkpoint, rest: dict[str, Tensor]
) -> PackedLinear:
    """The packed layer, whose tensors are removed from `rest`."""
    dense = _linear(model, name)
    start = f"{name}." if name else ""
    mine = {key.removeprefix(start): rest.pop(key) for key in list(rest) if key.startswith(start)}
    n, k = dense_weight(dense).shape
    parts = Parts(name, n, k, mine)
    made = _read(parts, source.gptq)
    bias = _bias(parts, made.dtype, "bias" in dict(dense.named_parameters(recurse=False)))
    layer = PackedLinear(made.format, (n, k), made.tensors, made.dtype, bias, made.order)
    return layer.train(dense.training)


def _bias(parts: Parts, dtype: torch.dtype, wanted: bool) -> nn.Parameter | None:
    """A layer's bias; None for zeros that a writer adds to a layer without one."""
    if not wanted and not ("bias" in parts.tensors and parts.tensors["bias"].any()):
        return None
    bias = parts.take("bias", [parts.n], *HALVES)
    return nn.Parameter(bias.to(dtype), requires_grad=False)


def _read(parts: Parts, version: int) -> PackedWeight:
    """Reads a layer by the format that its tensors have."""
    if STATE in parts.tensors:
        return read_nf4(parts)
    words = parts.tensors["qweight"]
    # AWQ has a row for each input, GPTQ one for several.
    of_awq = words.dim() == 2 and words.shape[0] == parts.k
    return read_awq(parts) if of_awq else read_gptq(parts, version)


def _linear(model: nn.Module, name: str) -> nn.Module:
    try:
        found = model.get_submodule(name)
    except AttributeError as error:
        raise InputError(
            f"the checkpoint packs {name}, and the model has no such layer: take the checkpoint's own architecture"
        ) from error
    if not is_linear(found):
        raise InputError(
            f"the checkpoint packs {name}, which is a {type(found).__name__} in the model and no linear layer"
        )
    return found


def _within(name: str, packed: Container[str]) -> bool:
    """Whether a tensor is of a packed layer, or packed itself."""
    return name in packed or name.rpartition(".")[0] in packed


def _ties(
    model: nn.Module, packed: Mapping[str, PackedLinear], rest: Mapping[str, Tensor]
) -> dict[str, str]:
    """Parameters that the checkpoint leaves out because they are tied, with the parameter that it contains."""
    names = dict[int, list[str]]()
    for name, p in model.named_parameters(remove_duplicate=False):
        if not _within(name, packed):
            names.setdefault(id(p), []).append(name)
    ties = dict[str, str]()
    for same in names.values():
        given = [n for n in same if n in rest]
        if given:
            ties.update({n: given[0] for n in same if n not in rest})
    return ties


def _check_rest(
    model: nn.Module,
    packed: Container[str],
    rest: Mapping[str, Tensor],
    ties: Mapping[str, str],
) -> None:
    own = {n: t for n, t in model.state_dict().items() if not _within(n, packed)}
    if missing := [n for n in own if n not in rest and n not in ties]:
        raise InputError(f"the checkpoint lacks {_some(missing)}")
    if extra := [n for n in rest if n not in own]:
        raise InputError(f"the model has nothing of the name {_some(extra)}, as the checkpoint has")
    for name, tensor in own.items():
        if name in rest and rest[name].shape != tensor.shape:
            raise InputError(
                f"{name} is {list(rest[name].shape)} in the checkpoint and {list(tensor.shape)} in the model"
            )
    unsaved = [n for n, b in model.named_buffers() if b.is_meta and n not in own]
    if unsaved := [n for n in unsaved if not _within(n, packed)]:
        raise InputError(
            f"{_some(unsaved)} is on the meta device, and no checkpoint has it: create buffers on the CPU"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _row(name: str, layer: PackedMatrix, shape: tuple[int, ...]) -> PackedRow:
    dense = math.prod(shape) * torch.empty(0, dtype=layer.dtype).element_size()
    return PackedRow(name, layer.format.name, shape, None, dense, packed_bytes(layer))
