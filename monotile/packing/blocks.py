"""Experts whose weights a checkpoint has in blocks of MXFP4, as GPT-OSS's: [experts, out, in] as blocks of 32 along the inputs."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from monotile.errors import InputError
from monotile.packing.formats import format_named
from monotile.packing.microscaling import BLOCK
from monotile.packing.parts import HALVES, Parts
from monotile.packing.stacks import PackedStack, Stack, stacks_of

CODES, EXPONENTS, BIAS = "_blocks", "_scales", "_bias"  # endings, after the parameter's name


def names_of_blocks(tensors: Mapping[str, Tensor]) -> list[str]:
    """The parameters that come in blocks."""
    found = (key.removesuffix(CODES) for key in tensors if key.endswith(CODES))
    return [name for name in found if name + EXPONENTS in tensors]


def read_blocks(model: nn.Module, name: str, rest: dict[str, Tensor]) -> tuple[Stack, PackedStack]:
    """Parameter `name` of the model and its packed matrices, whose tensors are removed from `rest`.

    blocks: uint8 [experts, out, in / 32, 16], the first element of a byte in its low half. scales: uint8 [experts, out, in / 32], exponents
    with a bias of 127. The decoded matrices have the dtype of the checkpoint's bias, if it has one, else the parameter's.
    Raises InputError where the model has no such experts, or of another shape.
    """
    stack = _stack(model, name)
    experts, n, k = stack.weight.shape
    parts = Parts(name, n, k, {key: rest.pop(name + key) for key in (CODES, EXPONENTS)})
    if k % BLOCK:
        raise parts.wrong(f"blocks of {BLOCK} do not divide its {k} inputs")
    rows = experts * n
    codes = parts.take(CODES, [experts, n, k // BLOCK, BLOCK // 2], torch.uint8)
    exponents = parts.take(EXPONENTS, [experts, n, k // BLOCK], torch.uint8)
    tensors = {
        "codes": codes.reshape(rows, k // 2),
        "exponents": exponents.reshape(rows, k // BLOCK).view(torch.float8_e8m0fnu),
    }
    bias = rest.get(name + BIAS)
    dtype = bias.dtype if bias is not None and bias.dtype in HALVES else stack.parameter.dtype
    shape = (experts, n, k)
    return stack, PackedStack(format_named("mxfp4"), shape, tensors, dtype, stack.transposed)


def _stack(model: nn.Module, name: str) -> Stack:
    parent, _, own = name.rpartition(".")
    try:
        module = model.get_submodule(parent)
    except AttributeError as error:
        raise InputError(
            f"the checkpoint packs {name}, and the model has no {parent}: take the checkpoint's own architecture"
        ) from error
    found = next((s for s in stacks_of(module) if s.name == own), None)
    if found is None:
        raise InputError(
            f"the checkpoint packs {name}, which is no matrices of experts in the model's {type(module).__name__}"
        )
    return found
