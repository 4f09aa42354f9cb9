"""Indexing by a scalar tensor, `table[t]` and `cache[:, t] = x`, while a model is traced.

PyTorch reads the number from the tensor, which is data-dependent. Here the tensor itself is the index, like an index tensor with dimensions. So
`table[t]` is a copy, not a view: a model that writes into it is refused.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.export import ExportedProgram

from monotile.errors import CaptureError
from monotile.frontends.torch.loops.number_slices import (
    LOOKUP,
    assign_slice,
    has_number_slice,
    selected_by_sizes,
    sliced_by_numbers,
)
from monotile.frontends.torch.origin import origin

_INDEX, _PUT = torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default
_WHOLE = slice(None)


@contextmanager
def tensors_index() -> Generator[None]:
    """Within, a traced scalar tensor is an index without being read."""
    basic, put = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def get(x: torch.Tensor, index: Any) -> torch.Tensor:
        if (at := selected_by_sizes(x, index)) is not None:
            return basic(*at) if at[1] else at[0]
        return sliced_by_numbers(x, index) if has_number_slice(index) else basic(x, index)

    def get_item(x: torch.Tensor, index: Any) -> torch.Tensor:
        parts = _parts(x, index)
        if parts is None:
            return get(x, index)
        for d, part in reversed([*enumerate(p for p in parts if p is not None)]):
            if _is_unknown(part):
                x = _INDEX(x, [None] * d + [part])
        rest = tuple(part for part in parts if not _is_unknown(part))
        return x if all(map(_is_whole, rest)) else get(x, rest)

    def set_item(x: torch.Tensor, index: Any, value: Any) -> None:
        parts = _parts(x, index)
        indices = _indices(parts) if parts is not None else None
        if (at := selected_by_sizes(x, index)) is not None:
            return put(at[0], at[1] or ..., value)
        if parts is None or indices is None:
            return (
                assign_slice(x, index, value) if has_number_slice(index) else put(x, index, value)
            )
        basic = tuple(_WHOLE if isinstance(part, torch.Tensor) else part for part in parts)
        view = x if all(map(_is_whole, basic)) else get(x, basic)
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=x.dtype, device=x.device)
        most = _INDEX(view, indices).ndim
        while value.ndim > most and value.shape[0] == 1:
            value = value.squeeze(0)
        _PUT(view, indices, value.to(x.dtype))
        return None

    with (
        patch.object(torch.Tensor, "__getitem__", get_item),
        patch.object(torch.Tensor, "__setitem__", set_item),
    ):
        yield


def _is_unknown(part: Any) -> bool:
    """Whether it is an integer scalar tensor of unknown value."""
    return (
        isinstance(part, FakeTensor | FunctionalTensor)
        and part.ndim == 0
        and part.dtype not in (torch.bool, torch.uint8)
        and not part.is_floating_point()
        and getattr(part, "constant", None) is None
    )


def _is_whole(part: Any) -> bool:
    return isinstance(part, slice) and part == _WHOLE


def _parts(x: torch.Tensor, index: Any) -> list[Any] | None:
    """The parts of an index, with its ellipsis expanded; None if no part is such a scalar, or if a part is left to PyTorch."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not any(map(_is_unknown, parts)):
        return None
    if any(isinstance(part, list | bool) or _is_mask(part) for part in parts):
        return None
    gaps = [k for k, part in enumerate(parts) if part is Ellipsis]
    if len(gaps) == 1:
        taken = sum(part is not None for part in parts) - 1
        parts[gaps[0] : gaps[0] + 1] = [_WHOLE] * (x.ndim - taken)
    return parts


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8)


def _indices(parts: list[Any]) -> list[Any] | None:
    """The tensors among `parts`, by dimension of the view that the other parts give; None if other parts are between them."""
    indices = [
        part if isinstance(part, torch.Tensor) else None
        for part in parts
        if part is None or isinstance(part, slice | torch.Tensor)
    ]
    at = [k for k, part in enumerate(indices) if part is not None]
    several = any(part.ndim for part in indices if part is not None)
    if several and at[-1] - at[0] >= len(at):
        return None
    return indices[: at[-1] + 1]


def check_indexed_copies(exported: ExportedProgram) -> None:
    """Raises CaptureError if a model writes into the result of such indexing, which is a view in PyTorch, and does not assign it back."""
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            _check(module.graph)


def _check(graph: fx.Graph) -> None:
    indexed: dict[fx.Node, fx.Node] = {}  # and its views -> the node that indexed
    written: dict[
        fx.Node, fx.Node
    ] = {}  # the node that indexed -> the first node that writes into it
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        if node.target is LOOKUP or (node.target is _INDEX and _by_numbers(node)):
            indexed[node] = node
        elif (
            isinstance(first, fx.Node) and first in indexed and isinstance(node.target, OpOverload)
        ):
            writes = _writes(node.target)
            if writes or node.target.is_view:
                indexed[node] = indexed[first]
            if writes:
                written.setdefault(indexed[first], node)
    # As `x[k] += 1` does.
    back = {indexed.get(node.args[2]) for node in graph.nodes if node.target is _PUT}
    for source, node in written.items():
        if source not in back:
            raise CaptureError(
                "the model writes into the result of indexing by a tensor,"
                f" at {origin(node.stack_trace)}: write x[k] = value"
            )


def _by_numbers(node: fx.Node) -> bool:
    indices: Any = node.args[1]
    return all(k is None or k.meta["val"].ndim == 0 for k in indices)


def _writes(target: OpOverload) -> bool:
    alias = target._schema.arguments[0].alias_info  # pyright: ignore[reportPrivateUsage]
    return alias is not None and alias.is_write
