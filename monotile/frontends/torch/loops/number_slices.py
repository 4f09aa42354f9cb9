"""Slices of tensors that end at numbers which tensors stand for, `x[:, t : t + 1]` and `mask[k, n:] = 0`, and indices that are symbolic sizes."""

import functools
import math
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from monotile.errors import CaptureError
from monotile.frontends.torch.loops.tensor_numbers import index_range, stands_for_number
from monotile.frontends.torch.origin import describe_frame, users_frame

# Looks up the elements of a slice: a copy, where PyTorch's slice is a view (`numbers/tensor_indices.py` refuses writes into it).
LOOKUP = torch.ops.aten._unsafe_index.Tensor  # pyright: ignore[reportPrivateUsage]
_WHOLE = slice(None)


class SliceLengthError(CaptureError):
    """A slice has a length that data decide. selected: whether its elements are selected instead, so that the length is a data-dependent size."""

    selected: ClassVar[bool] = False


@contextmanager
def slices_selected() -> Generator[None]:
    """Within, the elements of slices whose lengths data decide are selected."""
    with patch.object(SliceLengthError, "selected", True):
        yield


def has_number_slice(index: Any) -> bool:
    """Whether a tensor's index has a slice with such numbers as ends."""
    return any(map(_has_number, index if isinstance(index, tuple) else (index,)))


def _has_number(part: Any) -> bool:
    return isinstance(part, slice) and any(map(stands_for_number, (part.start, part.stop)))


def sliced_by_numbers(x: torch.Tensor, index: Any) -> torch.Tensor:
    """`x[index]`, where slices end at such numbers. Raises SliceLengthError if a slice may have several lengths or exceed `x`."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for k, d in list(_dimensions(parts, x)):
        places = _positions(parts[k], x.shape[d])
        if places is None and SliceLengthError.selected:
            places = _mask(parts[k], x.shape[d]).nonzero().squeeze(1)
        if places is None:
            raise _refused()
        x, parts[k] = LOOKUP(x, [None] * d + [places.to(x.device)]), _WHOLE
    return x if all(map(_is_whole, parts)) else x[tuple(parts)]


def assign_slice(x: torch.Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`. Raises SliceLengthError if the index has more such numbers or tensors, or if the slice may have several lengths and the value is
    not the same all along it."""
    parts = list(index) if isinstance(index, tuple) else [index]
    found = list(_dimensions(parts, x))
    others = [p for p in parts if not _has_number(p)]
    if len(found) != 1 or any(isinstance(p, torch.Tensor | list) for p in others):
        raise _refused()
    ((k, d),) = found
    part, parts[k] = parts[k], _WHOLE
    view = x if all(map(_is_whole, parts)) else x[tuple(parts)]
    # The dimension of the view: what is behind it in `x` and not an integer's, from the end.
    gone = sum(isinstance(p, int | torch.SymInt) for p in parts[k + 1 :])
    new = sum(p is None for p in parts[k + 1 :])
    at = view.ndim - (x.ndim - d) + gone - new
    if (places := _positions(part, x.shape[d])) is not None:
        view[(*[_WHOLE] * at, places)] = value
        return
    behind = view.ndim - at
    if isinstance(value, torch.Tensor) and value.ndim >= behind and value.shape[-behind] != 1:
        raise _refused()
    mask = _mask(part, x.shape[d]).to(x.device).reshape(-1, *[1] * (behind - 1))
    view.copy_(torch.where(mask, value, view))


def first_positions(count: torch.Tensor, size: Any) -> torch.Tensor:
    """The positions of the first `count` of `size` elements, as many as data decide. Raises SliceLengthError at first, as other slices of such lengths do."""
    if not SliceLengthError.selected:
        raise _refused()
    return (torch.arange(size) < count).nonzero().squeeze(1)


def selected_by_sizes(x: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    """Selects the parts of an index that are symbolic sizes, which PyTorch would turn into numbers. Returns the result with the remaining index; None
    without such parts, or where the index contains tensors."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not isinstance(x, FakeTensor) or not any(isinstance(p, torch.SymInt) for p in parts):
        return None
    if not all(p is None or p is Ellipsis or isinstance(p, slice | int | torch.SymInt) for p in parts):  # fmt: skip
        return None
    for k, d in reversed(list(_dimensions(parts, x, lambda p: isinstance(p, torch.SymInt)))):
        x = x.select(d, parts.pop(k))
    return x, tuple(parts)


def _dimensions(
    parts: list[Any], x: torch.Tensor, which: Callable[[Any], bool] = lambda p: _has_number(p)
) -> Iterator[tuple[int, int]]:
    """The parts of an index that satisfy `which`, by default slices with numbers, each with its dimension of `x`."""
    taken = sum(p is not None and p is not Ellipsis for p in parts)
    d = 0
    for k, part in enumerate(parts):
        if which(part):
            yield k, d
        d += x.ndim - taken if part is Ellipsis else part is not None


def _positions(part: slice, size: Any) -> torch.Tensor | None:
    """The positions of a slice of known length; None for others. Those that data decide are checked in each call."""
    if part.step not in (None, 1) or not (
        stands_for_number(part.start) and stands_for_number(part.stop)
    ):
        return None
    first, last = index_range(part.start), index_range(part.stop)
    length = last.offset - first.offset
    if first.base is not last.base or not isinstance(length, int) or length < 1:
        return None
    start = part.start.reshape(1)
    if first.low == -math.inf:
        start = torch.where(start < 0, size, start)  # the slice would be empty, or end before it
    # Comparing two sizes that are equal in the example adds a guard on calls.
    elif not (statically_known_true(first.low >= 0) and last.high <= size):
        return None
    return start + torch.arange(length) if length > 1 else start


def _mask(part: slice, size: Any) -> torch.Tensor:
    """bool [size]: which positions the slice has."""
    if part.step not in (None, 1):
        raise _refused()

    def end(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x if x >= 0 else x + size
        return torch.where(x < 0, x + size, x)

    at = torch.arange(size)
    found = [at >= end(part.start)] if part.start is not None else []
    found += [at < end(part.stop)] if part.stop is not None else []
    return functools.reduce(torch.logical_and, found)


def _refused() -> SliceLengthError:
    frame = users_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    return SliceLengthError(
        f"at {describe_frame(frame)}: the ends of a slice depend on the index of a loop over a size of dynamic_shapes, or on a number that a"
        " tensor has, and its length may vary, or it may end beyond the tensor: take the whole tensor, and mask it by that index"
    )


def _is_whole(part: Any) -> bool:
    return part is Ellipsis or (isinstance(part, slice) and part == _WHOLE)
