"""`monotile.pack`: a model with its linear layers and experts packed."""

import copy
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from monotile.errors import InputError
from monotile.packing.format import Format, Tensors
from monotile.packing.formats import Group, format_named
from monotile.packing.layer import PackedEmbedding, PackedLinear, PackedMatrix
from monotile.packing.layers import Layers, Where, dense_weight, is_embedding, layers_of, replace_in
from monotile.packing.report import PackedRow, PackingReport
from monotile.packing.stacks import PackedStack, Stack, hold

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
CHUNK = 1 << 22  # weights that are encoded at a time


def pack(
    model: nn.Module,
    format: str = "int4",
    group: Group = "default",
    *,
    symmetric: bool = True,
    where: Where = None,
    embeddings: bool = False,
    inplace: bool = False,
) -> nn.Module:
    """The model with each `nn.Linear`, and each `Conv1D` of transformers, as a `PackedLinear`, and with packed weights in each module of
    experts of transformers (`PackedStack`, named as its parameter or module); `packing` is its PackingReport.

    format:     "int8", "int4", "int2", "int1", "nf4", "fp8" ("fp8_e4m3"), "fp8_e5m2", "mxfp4", "mxfp8", N:M such as "2:4", or
                vector-wise N:M, such as "8:32x64" with the same positions for 64 outputs.
    group:      how many neighbours along the inputs share a scale; None: a whole row. "default": 128, nf4 64.
    symmetric:  False: each group of integers has a zero of its own.
    where:      which layers: (name, module) -> bool, or patterns of names as in a shell: ["*.mlp.*"].
    embeddings: also each `nn.Embedding`, as a `PackedEmbedding`, and a head whose weight is an embedding's: held once, as codes.
    inplace:    change the model itself. Without it weights that are packed are not copied, all else is.

    Left alone, each with a reason in the report: weights that are tied to another parameter, layers with hooks, and subclasses
    with a forward or tensors of their own. Raises InputError, and changes nothing, if a layer does not fit the format.
    """
    made = format_named(format, group, symmetric)
    layers = layers_of(model, where, embeddings=embeddings)
    _check(layers, made)
    before = size_of(model)
    memo = dict[int, object]()
    packed = dict[nn.Module, nn.Module]()
    tables = dict[nn.Parameter, PackedMatrix]()
    rows = dict[nn.Parameter, PackedRow]()
    for name, module in layers.chosen.items():
        weight = module.get_parameter("weight")
        if weight in tables:
            rows[weight] = rows[weight]._replace(name=f"{rows[weight].name}, {name}")
        else:
            bias = dict(module.named_parameters(recurse=False)).get("bias")
            bias = bias if inplace else copy.deepcopy(bias, memo)
            tensors, error = _encoded(name, dense_weight(module), made)
            table = _matrix(module, made, tensors, bias)
            sizes = _bytes(weight), packed_bytes(table)
            tables[weight] = table
            rows[weight] = PackedRow(name, format, table.shape, error, *sizes)
        packed[module] = _layer(module, tables[weight]).train(module.training)
    stacks = {name: _stack(name, s, made) for name, s in layers.stacks.items()}
    rows |= {layers.stacks[name].parameter: row for name, (_, row) in stacks.items()}
    if inplace:
        replace_in(model, packed)
    else:
        # What is in the memo counts as copied.
        memo.update({id(old): new for old, new in packed.items()})
        memo.update({id(s.parameter): s.parameter for s in layers.stacks.values()})
        model = copy.deepcopy(model, memo)
    found = packed.get(model, model)
    for name, (stack, _) in stacks.items():
        module, _, own = name.rpartition(".")
        hold(found.get_submodule(module), own, stack)
    report(found, PackingReport(tuple(rows.values()), layers.left, before, size_of(found)))
    return found


def report(model: nn.Module, made: PackingReport) -> None:
    """Sets the model's attribute `packing` to the report."""
    model.__dict__["packing"] = made


def size_of(model: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    return sum(map(_bytes, chain(model.parameters(), model.buffers())))


def packed_bytes(layer: PackedMatrix) -> int:
    """Bytes of a layer's weight."""
    return sum(map(_bytes, layer.buffers()))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _check(layers: Layers, format: Format) -> None:
    """Raises InputError if a weight does not fit the format."""
    for name, module in layers.chosen.items():
        _check_weight(name, dense_weight(module), format, alone=is_embedding(module))
    for name, stack in layers.stacks.items():
        _check_weight(name, stack.weight, format, alone=False)


def _check_weight(name: str, weight: Tensor, format: Format, *, alone: bool) -> None:
    """weight: [..., out, in]. alone: its rows are read alone, as an embedding's."""
    what = f"{name or 'the model'} ({' × '.join(map(str, weight.shape))})"
    if weight.dtype not in DTYPES:
        raise InputError(
            f"{what} has weights of {weight.dtype}: only float32, float16, bfloat16 and float64 can be packed; leave it out with where="
        )
    if weight.is_meta:
        raise InputError(f"{what} has no values, as it is on the meta device: load the model first")
    n, k = weight.shape[-2:]
    reason = format.refusal(k)
    if n % format.together:
        reason = f"its {n} outputs are no vectors of {format.together}: take another format"
    elif format.together > 1 and alone:
        reason = f"rows of {format.name} are encoded {format.together} together, and an embedding reads them alone: take another format"
    if reason:
        raise InputError(
            f"{what} cannot be packed as {format.name}: {reason}; or leave it out with where="
        )


def _layer(module: nn.Module, table: PackedMatrix) -> nn.Module:
    """The replacement of `module`."""
    return PackedEmbedding(table, module.padding_idx) if isinstance(module, nn.Embedding) else table


def _matrix(
    module: nn.Module, format: Format, tensors: Tensors, bias: nn.Parameter | None
) -> PackedMatrix:
    """The packed weight of `module`; for a linear layer the packed layer."""
    weight = dense_weight(module)
    stored = format, (weight.shape[0], weight.shape[1]), tensors, weight.dtype
    return PackedMatrix(*stored) if is_embedding(module) else PackedLinear(*stored, bias)


def _stack(name: str, stack: Stack, format: Format) -> tuple[PackedStack, PackedRow]:
    """The packed weights of experts, with their row of the report."""
    tensors, error = _encoded(name, stack.weight, format)
    count, n, k = stack.weight.shape
    shape, dtype = (count, n, k), stack.weight.dtype
    made = PackedStack(format, shape, tensors, dtype, stack.transposed)
    sizes = _bytes(stack.weight), packed_bytes(made)
    return made, PackedRow(name, format.name, shape, error, *sizes)


def _encoded(name: str, weight: Tensor, format: Format) -> tuple[dict[str, Tensor], float]:
    """The format's tensors for the rows of a weight [..., out, in], one matrix below the other, and their relative error."""
    tables = format.tables(weight.device)
    parts = list[dict[str, Tensor]]()
    lost = whole = 0.0
    for some in _chunks(weight, format.together):
        tensors = format.encode(some, weight.dtype)
        exact = some.to(torch.float64)
        decoded = format.decode({**tensors, **tables}, weight.dtype)
        lost += float((exact - decoded).square().sum())
        whole += float(exact.square().sum())
        parts.append(tensors)
    if whole != whole or whole == float("inf"):
        shape = " × ".join(map(str, weight.shape))
        raise InputError(
            f"{name or 'the model'} ({shape}) has weights that are not finite: leave it out with where="
        )
    joined = {key: _joined([p[key] for p in parts]) for key in parts[0]}
    return {**joined, **tables}, (lost / whole) ** 0.5 if whole else 0.0


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _chunks(weight: Tensor, together: int) -> Iterator[Tensor]:
    """Chunks of rows that are encoded together: encoding needs several times their memory."""
    count = max(1, CHUNK // weight.shape[-1] // together) * together
    for matrix in weight if weight.dim() == 3 else (weight,):
        for some in matrix.split(count):
            yield some.contiguous()
