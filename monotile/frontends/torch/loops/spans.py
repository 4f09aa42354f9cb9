"""Numbers of Python in tensors, while a model is traced: the number of a loop's turn, and what a turn counts.

Nothing changes one where it is, as Python's `+=` does not. Of a turn's number, and of one that differs by a constant, it is known what it lies between:
`x[:, t : t + 1]` is a slice of one.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import describe_frame, users_frame

_NUMBER = "_monotile_number"
_WHOLE = slice(None)


@dataclass(frozen=True)
class Span:
    """A number that lies between `low` and `high`, both included, `offset` more than another of the same `base`."""

    low: Any
    high: Any
    base: object
    offset: Any = 0


def number(x: torch.Tensor, span: Span | None = None) -> torch.Tensor:
    """`x`, which Python would have as a number."""
    setattr(x, _NUMBER, span)
    return x


def stands_for_number(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and hasattr(x, _NUMBER)


def of_numbers(func: Callable[..., Any], args: Any, named: Any) -> Any:
    """What an operator gives: of numbers alone a number, which is new, and in Python's type."""
    name = getattr(func, "__name__", "")
    if name in ("select", "narrow") and isinstance(args[0], torch.Tensor) and not named:
        return _one(*args) if name == "select" else _several(*args)
    if not all(isinstance(x, int | float | torch.SymInt) or stands_for_number(x) for x in (*args, *named.values())):  # fmt: skip
        return func(*args, **named)
    plain = name.strip("_")
    asks = name.startswith("__") and plain not in _PLAIN  # such as `__index__`
    if not asks and name.endswith("_") and hasattr(torch.Tensor, of := _PLAIN.get(plain, plain)):
        func = getattr(torch.Tensor, of)
    if plain in _FRACTIONS or any(isinstance(x, float) for x in args):
        args = tuple(x.to(torch.float64) if isinstance(x, torch.Tensor) else x for x in args)
    found = func(*args, **named)
    if not isinstance(found, torch.Tensor) or found.ndim:
        return found
    return number(found, _moved(plain, *args))


# Python's operators in place, by the names of PyTorch's that are not.
_PLAIN = {f"i{n}": n for n in ("add", "sub", "mul", "pow")} | {
    "idiv": "true_divide",
    "itruediv": "true_divide",
    "ifloordiv": "floor_divide",
    "imod": "remainder",
}
_FRACTIONS = frozenset({"div", "truediv", "rdiv", "rtruediv", "idiv", "itruediv", "true_divide"})


def _one(x: torch.Tensor, dim: int, place: torch.Tensor) -> torch.Tensor:
    return x[(*[_WHOLE] * (dim % x.ndim), place)]


def _several(x: torch.Tensor, dim: int, place: torch.Tensor, length: int) -> torch.Tensor:
    end = number(
        place + length, _moved("add", place, length)
    )  # a mode does not see its own operators
    return x[(*[_WHOLE] * (dim % x.ndim), slice(place, end))]


def listed(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """`torch.tensor(data)`, with such numbers in it."""

    def made(x: Any) -> torch.Tensor:
        if isinstance(x, list | tuple):
            return torch.stack([made(y) for y in x])
        return x.clone() if isinstance(x, torch.Tensor) else torch.full((), x)

    found = made(data)
    if dtype is None and found.dtype is torch.float64:
        dtype = torch.get_default_dtype()
    return found.to(device=device, dtype=dtype)


def _moved(name: str, *args: Any) -> Span | None:
    """The span of a sum or difference of a number and a constant."""
    match name, args:
        case ("add" | "iadd" | "radd", (torch.Tensor() as x, int() | torch.SymInt() as k)):
            ahead: Any = k
        case ("add" | "radd", (int() | torch.SymInt() as k, torch.Tensor() as x)):
            ahead = k
        case ("sub" | "isub", (torch.Tensor() as x, int() | torch.SymInt() as k)):
            ahead = -k
        case _:
            return None
    span: Span | None = getattr(x, _NUMBER)
    if span is None:
        return None
    return replace(span, low=span.low + ahead, high=span.high + ahead, offset=span.offset + ahead)


def slices_of(index: Any) -> bool:
    """Whether a tensor's index has a slice between such numbers."""
    return any(map(_is_numbered, index if isinstance(index, tuple) else (index,)))


def _is_numbered(part: Any) -> bool:
    return isinstance(part, slice) and any(map(stands_for_number, (part.start, part.stop)))


def sliced(x: torch.Tensor, index: Any) -> torch.Tensor:
    """`x[index]`, with slices between such numbers. Raises CaptureError where these may not lie within `x`, or be of more than one length."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for k, d in list(_dimensions(parts, x)):
        x, parts[k] = x.index_select(d, _places(parts[k], x.shape[d]).to(x.device)), _WHOLE
    return x if all(map(_is_whole, parts)) else x[tuple(parts)]


def put_sliced(x: torch.Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`. Raises CaptureError as `sliced`, and where more such numbers are in the index."""
    parts = list(index) if isinstance(index, tuple) else [index]
    found = list(_dimensions(parts, x))
    others = [p for p in parts if not _is_numbered(p)]
    if len(found) != 1 or any(isinstance(p, torch.Tensor | list) for p in others):
        raise _refused()
    ((k, d),) = found
    places = _places(parts[k], x.shape[d])
    parts[k] = _WHOLE
    view = x if all(map(_is_whole, parts)) else x[tuple(parts)]
    # The dimension of the view: what is behind it in `x` and not an integer's, from the end.
    gone = sum(isinstance(p, int | torch.SymInt) for p in parts[k + 1 :])
    new = sum(p is None for p in parts[k + 1 :])
    at = view.ndim - (x.ndim - d) + gone - new
    view[(*[_WHOLE] * at, places)] = value


def selected(x: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    """`x` at those parts of an index that are sizes, which PyTorch would make numbers, with the rest of it; None without such parts, or where tensors
    are among the others."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not isinstance(x, FakeTensor) or not any(isinstance(p, torch.SymInt) for p in parts):
        return None
    if not all(p is None or p is Ellipsis or isinstance(p, slice | int | torch.SymInt) for p in parts):  # fmt: skip
        return None
    for k, d in reversed(list(_dimensions(parts, x, lambda p: isinstance(p, torch.SymInt)))):
        x = x.select(d, parts.pop(k))
    return x, tuple(parts)


def _dimensions(
    parts: list[Any], x: torch.Tensor, which: Callable[[Any], bool] = lambda p: _is_numbered(p)
) -> Iterator[tuple[int, int]]:
    """The parts that are such slices, or `which`, each with its dimension of `x`."""
    taken = sum(p is not None and p is not Ellipsis for p in parts)
    d = 0
    for k, part in enumerate(parts):
        if which(part):
            yield k, d
        d += x.ndim - taken if part is Ellipsis else part is not None


def _places(part: slice, size: Any) -> torch.Tensor:
    first, last = (getattr(x, _NUMBER, None) for x in (part.start, part.stop))
    if part.step not in (None, 1) or not (isinstance(first, Span) and isinstance(last, Span)):
        raise _refused()
    length = last.offset - first.offset
    if first.base is not last.base or not isinstance(length, int) or length < 1:
        raise _refused()
    # Of two dimensions that are one size nothing is known before they are asked about, which is then a condition on calls.
    if not (statically_known_true(first.low >= 0) and last.high <= size):
        raise _refused()
    return part.start.reshape(1) + torch.arange(length) if length > 1 else part.start.reshape(1)


def _refused() -> CaptureError:
    frame = users_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    return CaptureError(
        f"at {describe_frame(frame)}: the ends of a slice depend on the number of a turn, in a loop that takes as many turns as a size of dynamic_shapes says,"
        " and it may be of several lengths, or end behind the tensor: take the whole tensor, and mask it by that number"
    )


def _is_whole(part: Any) -> bool:
    return part is Ellipsis or (isinstance(part, slice) and part == _WHOLE)
