"""Scalar tensors that stand for Python numbers while a model is traced: the index of a loop, and counters.

No operation changes one in place, as Python's `+=` does not change a number. A loop index, also plus a constant, has a known range, so the length
of `x[:, t : t + 1]` is known to be 1.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import describe_frame, users_frame

_NUMBER = "_monotile_number"
_WHOLE = slice(None)
_TYPES: dict[type[Any], torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    torch.SymInt: torch.int64,
    float: torch.float64,
}


@dataclass(frozen=True)
class IndexRange:
    """The range of an index: between `low` and `high`, both included. It is the loop index `base` plus `offset`."""

    low: Any
    high: Any
    base: object
    offset: Any = 0


def number(x: torch.Tensor, index_range: IndexRange | None = None) -> torch.Tensor:
    """Marks the scalar tensor `x` as standing for a Python number."""
    setattr(x, _NUMBER, index_range)
    return x


def stands_for_number(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and hasattr(x, _NUMBER)


def number_type(x: Any) -> torch.dtype | None:
    """The dtype of a tensor that holds the number `x`; None if `x` is not a number."""
    return x.dtype if stands_for_number(x) else _TYPES.get(type(x))


def number_tensor(x: Any) -> torch.Tensor:
    """A number as a tensor of the dtype that corresponds to Python's type; a tensor as it is."""
    return x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=number_type(x))


def apply_to_numbers(func: Callable[..., Any], args: Any, named: Any) -> Any:
    """The result of an operator. If all arguments are numbers, it is a new number of the type that Python would give."""
    name = getattr(func, "__name__", "")
    if name in ("select", "narrow") and isinstance(args[0], torch.Tensor) and not named:
        return _select(*args) if name == "select" else _narrow(*args)
    plain = name.strip("_")
    if not all(isinstance(x, int | float | torch.SymInt) or stands_for_number(x) for x in (*args, *named.values())):  # fmt: skip
        return func(*(_as_scalars(args) if plain in _PROMOTING else args), **named)
    asks = name.startswith("__") and plain not in _PLAIN  # such as `__index__`
    if not asks and name.endswith("_") and hasattr(torch.Tensor, of := _PLAIN.get(plain, plain)):
        func = getattr(torch.Tensor, of)
    if plain in _FRACTIONS or any(isinstance(x, float) for x in args):
        args = tuple(x.to(torch.float64) if isinstance(x, torch.Tensor) else x for x in args)
    found = func(*args, **named)
    if not isinstance(found, torch.Tensor) or found.ndim:
        return found
    return number(found, _shifted(plain, *args))


# Python's in-place operators, as PyTorch's out-of-place ones.
_PLAIN = {f"i{n}": n for n in ("add", "sub", "mul", "pow")} | {
    "idiv": "true_divide",
    "itruediv": "true_divide",
    "ifloordiv": "floor_divide",
    "imod": "remainder",
}
_FRACTIONS = frozenset({"div", "truediv", "rdiv", "rtruediv", "idiv", "itruediv", "true_divide"})


# Operators whose result has the type to which those of their operands are promoted.
_PROMOTING = frozenset(
    "add radd sub rsub mul rmul div rdiv truediv rtruediv true_divide divide floordiv rfloordiv floor_divide mod rmod remainder fmod pow rpow"
    " where and rand or ror xor rxor bitwise_and bitwise_or bitwise_xor clamp clip clamp_min clamp_max lerp".split()
)


def _as_scalars(args: Any) -> Any:
    """`args` with numbers in types that do not promote those of tensors where Python's numbers do not: a number among integers, or among tensors
    without dimensions, would be a tensor like them."""
    tensors = [x for x in args if isinstance(x, torch.Tensor) and not stands_for_number(x)]
    if not tensors:
        return args
    typed = [x for x in tensors if x.dtype is not torch.bool] or tensors
    kind = functools.reduce(torch.promote_types, (x.dtype for x in typed))

    def scalar(x: Any) -> Any:
        if not stands_for_number(x) or x.dtype is kind or kind.is_complex:
            return x
        if x.dtype.is_floating_point and not kind.is_floating_point:
            return x.to(torch.get_default_dtype())
        if kind is torch.bool or any(y.ndim for y in typed):
            return x
        return x.to(kind)

    return tuple(map(scalar, args))


def _select(x: torch.Tensor, dim: int, place: torch.Tensor) -> torch.Tensor:
    return x[(*[_WHOLE] * (dim % x.ndim), place)]


def _narrow(x: torch.Tensor, dim: int, place: torch.Tensor, length: int) -> torch.Tensor:
    end = number(
        place + length, _shifted("add", place, length)
    )  # a mode does not see its own operators
    return x[(*[_WHOLE] * (dim % x.ndim), slice(place, end))]


def tensor_of(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """`torch.tensor(data)`, where `data` contains such numbers."""

    def made(x: Any) -> torch.Tensor:
        if isinstance(x, list | tuple):
            return torch.stack([made(y) for y in x])
        return x.clone() if isinstance(x, torch.Tensor) else torch.full((), x)

    found = made(data)
    if dtype is None and found.dtype is torch.float64:
        dtype = torch.get_default_dtype()
    return found.to(device=device, dtype=dtype)


def from_operators(name: str, args: Any, named: Any) -> torch.Tensor | None:
    """The result of an operator whose schema takes numbers and no tensors in their place, with such numbers; None for others."""
    match name, args:
        case ("add" | "sub", (x, y)) if stands_for_number(alpha := named.get("alpha")):
            by: Any = y * alpha
            return x + by if name == "add" else x - by
        case ("clamp" | "clip", (x, *_)):
            low, high = [*args[1:], None, None][:2]
            ends = [named.get("min", low), named.get("max", high)]
            if len([e for e in ends if e is not None]) == 2 and any(map(stands_for_number, ends)):
                return x.clamp(min=ends[0]).clamp(max=ends[1])
        case ("new_tensor", (x, data, *_)) if any(map(stands_for_number, pytree.tree_leaves(data))):
            return tensor_of(data, named.get("dtype") or x.dtype, named.get("device") or x.device)
        case _:
            pass
    return None


def _shifted(name: str, *args: Any) -> IndexRange | None:
    """The range of a number plus or minus a constant."""
    match name, args:
        case ("add" | "iadd" | "radd", (torch.Tensor() as x, int() | torch.SymInt() as k)):
            shift: Any = k
        case ("add" | "radd", (int() | torch.SymInt() as k, torch.Tensor() as x)):
            shift = k
        case ("sub" | "isub", (torch.Tensor() as x, int() | torch.SymInt() as k)):
            shift = -k
        case _:
            return None
    index_range: IndexRange | None = getattr(x, _NUMBER)
    if index_range is None:
        return None
    return replace(
        index_range,
        low=index_range.low + shift,
        high=index_range.high + shift,
        offset=index_range.offset + shift,
    )


def has_number_slice(index: Any) -> bool:
    """Whether a tensor's index has a slice with such numbers as ends."""
    return any(map(_has_number, index if isinstance(index, tuple) else (index,)))


def _has_number(part: Any) -> bool:
    return isinstance(part, slice) and any(map(stands_for_number, (part.start, part.stop)))


def sliced_by_numbers(x: torch.Tensor, index: Any) -> torch.Tensor:
    """`x[index]`, where slices end at such numbers. Raises CaptureError if a slice may exceed `x` or have several lengths."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for k, d in list(_dimensions(parts, x)):
        x, parts[k] = x.index_select(d, _positions(parts[k], x.shape[d]).to(x.device)), _WHOLE
    return x if all(map(_is_whole, parts)) else x[tuple(parts)]


def assign_slice(x: torch.Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`. Raises CaptureError as `sliced_by_numbers`, and if the index has more such numbers."""
    parts = list(index) if isinstance(index, tuple) else [index]
    found = list(_dimensions(parts, x))
    others = [p for p in parts if not _has_number(p)]
    if len(found) != 1 or any(isinstance(p, torch.Tensor | list) for p in others):
        raise _refused()
    ((k, d),) = found
    places = _positions(parts[k], x.shape[d])
    parts[k] = _WHOLE
    view = x if all(map(_is_whole, parts)) else x[tuple(parts)]
    # The dimension of the view: what is behind it in `x` and not an integer's, from the end.
    gone = sum(isinstance(p, int | torch.SymInt) for p in parts[k + 1 :])
    new = sum(p is None for p in parts[k + 1 :])
    at = view.ndim - (x.ndim - d) + gone - new
    view[(*[_WHOLE] * at, places)] = value


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


def _positions(part: slice, size: Any) -> torch.Tensor:
    first, last = (getattr(x, _NUMBER, None) for x in (part.start, part.stop))
    if part.step not in (None, 1) or not (
        isinstance(first, IndexRange) and isinstance(last, IndexRange)
    ):
        raise _refused()
    length = last.offset - first.offset
    if first.base is not last.base or not isinstance(length, int) or length < 1:
        raise _refused()
    # Comparing two sizes that are equal in the example adds a guard on calls.
    if not (statically_known_true(first.low >= 0) and last.high <= size):
        raise _refused()
    return part.start.reshape(1) + torch.arange(length) if length > 1 else part.start.reshape(1)


def _refused() -> CaptureError:
    frame = users_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    return CaptureError(
        f"at {describe_frame(frame)}: the ends of a slice depend on the index of a loop over a size of dynamic_shapes, or on a number that a"
        " tensor has, and its length may vary, or it may end beyond the tensor: take the whole tensor, and mask it by that index"
    )


def _is_whole(part: Any) -> bool:
    return part is Ellipsis or (isinstance(part, slice) and part == _WHOLE)
