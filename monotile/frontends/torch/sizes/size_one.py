"""Exports a model again for sizes of 1, where it takes another path for them."""

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import Dim, ExportedProgram

from monotile.errors import CaptureError
from monotile.frontends.torch.export import export
from monotile.frontends.torch.sizes.examples import with_size
from monotile.frontends.torch.sizes.ranges import FIXED, Ranges, ranges_of

_MAX_ONES = 2  # sizes of which each may be 1, in all combinations

Call = tuple[Sequence[Any], Mapping[str, Any] | None]


def exports_for_one(exported: ExportedProgram, model: torch.nn.Module | ExportedProgram, call: Call, results: Any) -> Iterator[ExportedProgram]:  # fmt: skip
    """The exports of `model` in which sizes that its guards name are 1, those with most of them first.

    exported: the model for all sizes, with the same arguments. results: as `export` takes it.
    """
    if isinstance(model, ExportedProgram):  # which has no guards
        return
    ranges = ranges_of(exported)
    names = [n for n, _, _ in ranges.of]
    apart = [n for n in names if any(fails_only_for_one(ranges, t, n) for t in ranges.conditions)]
    apart = [n for k, n in enumerate(apart) if ranges.equal_to(n).isdisjoint(apart[:k])]
    for count in range(min(len(apart), _MAX_ONES), 0, -1):
        for ones in itertools.combinations(apart, count):
            try:
                sizes = {n: 1 for one in ones for n in ranges.equal_to(one)}
                args, kwargs, shapes = resized(exported, ranges, call, sizes, model.forward)
                found = export(model, args, kwargs, results, shapes)
            except CaptureError:  # a call of that size raises an error
                continue
            found.graph_module.meta[FIXED] = tuple((names.index(n), 1) for n in names if n in sizes)
            yield found


def fails_only_for_one(ranges: Ranges, text: str, name: str) -> bool:
    """Whether a condition fails if this symbol is 1, and only then."""
    ends = {n: (low, high) for n, low, high in ranges.of}
    if ends[name][0] > 1 or ends[name][1] == 1:
        return False
    rest = tuple((n, max(low, 2) if n == name else low, high) for n, low, high in ranges.of)
    held = Ranges(rest).values(text)
    return bool(held) and all(held)


def resized(
    exported: ExportedProgram, ranges: Ranges, call: Call, sizes: Mapping[str, int], forward: Any, most: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> tuple[Sequence[Any], Mapping[str, Any], Any]:  # fmt: skip
    """Arguments in which the symbols of `sizes` have these sizes, and dynamic_shapes for all other symbols, with the ranges of `most` where given."""
    leaves, tree = pytree.tree_flatten((tuple(call[0]), dict(call[1] or {})))
    ends = {n: (low, high) for n, low, high in ranges.of if n not in sizes} | dict(most)
    dims = {n: Dim(n, min=low, max=high) for n, (low, high) in ends.items()}
    given = exported.graph_signature.user_inputs
    if len(given) != len(leaves):
        raise CaptureError("arguments in containers that PyTorch does not know")
    values = {n.name: n.meta.get("val") for n in exported.graph.find_nodes(op="placeholder")}
    specs: list[Any] = []
    for k, name in enumerate(given):
        value = values.get(name) if isinstance(name, str) else None
        if isinstance(value, torch.SymInt):
            raise CaptureError("a size that is an argument")
        if not isinstance(value, torch.Tensor):
            specs.append(None)
            continue
        own = {d: n.node.expr for d, n in enumerate(value.shape) if isinstance(n, torch.SymInt)}
        for d, expr in own.items():
            at = expr.subs({s: sizes[str(s)] for s in expr.free_symbols if str(s) in sizes})
            if at.is_Integer:
                leaves[k] = with_size(leaves[k], d, int(at))
        specs.append({d: _dim(x, dims) for d, x in own.items() if _open(x, dims)} or None)
    args, kwargs = pytree.tree_unflatten(leaves, tree)
    shapes = pytree.tree_unflatten(specs, tree)
    bound = inspect.signature(forward).bind(*shapes[0], **shapes[1]).arguments
    return args, kwargs, dict(bound)


def _open(expr: Any, dims: Mapping[str, Any]) -> bool:
    return any(str(s) in dims for s in expr.free_symbols)


def _dim(expr: Any, dims: Mapping[str, Any]) -> Any:
    """The size as `torch.export` takes it: a Dim, or a linear function of one."""
    (symbol,) = (s for s in expr.free_symbols if str(s) in dims)
    factor, rest = expr.coeff(symbol), expr.subs({symbol: 0})
    own = dims[str(symbol)]
    own = own if factor == 1 else int(factor) * own
    return own if rest == 0 else own + int(rest)
