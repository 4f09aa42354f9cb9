"""Elements picked by the number in a tensor, `table[t]` and `cache[:, t] = x`, while a model is traced.

PyTorch takes the number out of the tensor, which is data-dependent; here the tensor itself is an index, as one of more dimensions is. What
`table[t]` gives is then no view: that a model writes into it is noticed.
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
from monotile.frontends.torch.loops.tensor_numbers import (
    assign_slice,
    has_number_slice,
    selected_by_sizes,
    sliced_by_numbers,
)
from monotile.frontends.torch.origin import origin

_PICK, _PUT = torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default
_WHOLE = slice(None)


@contextmanager
def picks_by_tensors() -> Generator[None]:
    """Within, a traced number is an index as it is."""
    basic, put = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def get(x: torch.Tensor, index: Any) -> torch.Tensor:
        if (at := selected_by_sizes(x, index)) is not None:
            return basic(*at) if at[1] else at[0]
        return sliced_by_numbers(x, index) if has_number_slice(index) else basic(x, index)

    def getting(x: torch.Tensor, index: Any) -> torch.Tensor:
        parts = _parts(x, index)
        if parts is None:
            return get(x, index)
        for d, part in reversed([*enumerate(p for p in parts if p is not None)]):
            if _is_unknown(part):
                x = _PICK(x, [None] * d + [part])
        rest = tuple(part for part in parts if not _is_unknown(part))
        return x if all(map(_is_whole, rest)) else get(x, rest)

    def putting(x: torch.Tensor, index: Any, value: Any) -> None:
        parts = _parts(x, index)
        places = _places(parts) if parts is not None else None
        if (at := selected_by_sizes(x, index)) is not None:
            return put(at[0], at[1] or ..., value)
        if parts is None or places is None:
            return (
                assign_slice(x, index, value) if has_number_slice(index) else put(x, index, value)
            )
        basic = tuple(_WHOLE if isinstance(part, torch.Tensor) else part for part in parts)
        view = x if all(map(_is_whole, basic)) else get(x, basic)
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=x.dtype, device=x.device)
        most = _PICK(view, places).ndim
        while value.ndim > most and value.shape[0] == 1:
            value = value.squeeze(0)
        _PUT(view, places, value.to(x.dtype))
        return None

    with (
        patch.object(torch.Tensor, "__getitem__", getting),
        patch.object(torch.Tensor, "__setitem__", putting),
    ):
        yield


def _is_unknown(part: Any) -> bool:
    """Whether it is a whole number that no trace knows."""
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
    """The index, an ellipsis spelled out; None if no part is such a number, or one is what these functions leave to PyTorch."""
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


def _places(parts: list[Any]) -> list[Any] | None:
    """The tensors among `parts`, by the dimension of what the others leave; None if others are between them."""
    places = [
        part if isinstance(part, torch.Tensor) else None
        for part in parts
        if part is None or isinstance(part, slice | torch.Tensor)
    ]
    at = [k for k, part in enumerate(places) if part is not None]
    several = any(part.ndim for part in places if part is not None)
    if several and at[-1] - at[0] >= len(at):
        return None
    return places[: at[-1] + 1]


def check_picked(exported: ExportedProgram) -> None:
    """Raises CaptureError where a model writes into what it has picked so, which would be a view, and does not put it back."""
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            _check(module.graph)


def _check(graph: fx.Graph) -> None:
    picked: dict[fx.Node, fx.Node] = {}  # and what shares its memory -> where it was picked
    written: dict[fx.Node, fx.Node] = {}  # where it was picked -> the first that writes into it
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        if node.target is _PICK and _by_numbers(node):
            picked[node] = node
        elif isinstance(first, fx.Node) and first in picked and isinstance(node.target, OpOverload):
            writes = _writes(node.target)
            if writes or node.target.is_view:
                picked[node] = picked[first]
            if writes:
                written.setdefault(picked[first], node)
    # As `x[k] += 1` does.
    back = {picked.get(node.args[2]) for node in graph.nodes if node.target is _PUT}
    for source, node in written.items():
        if source not in back:
            raise CaptureError(
                "the model writes into what a tensor picks of another,"
                f" at {origin(node.stack_trace)}: write x[k] = value"
            )


def _by_numbers(node: fx.Node) -> bool:
    places: Any = node.args[1]
    return all(k is None or k.meta["val"].ndim == 0 for k in places)


def _writes(target: OpOverload) -> bool:
    alias = target._schema.arguments[0].alias_info  # pyright: ignore[reportPrivateUsage]
    return alias is not None and alias.is_write
