"""Scalar tensors that stand for Python numbers while a model is traced: the index of a loop, and counters.

No operation changes one in place, as Python's `+=` does not change a number. A loop index, also plus a constant, has a known range, so the length
of `x[:, t : t + 1]` is known to be 1.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

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


def index_range(x: torch.Tensor) -> IndexRange:
    """The known range of a number; that of a number that data decide is unbounded, and it is its own base."""
    return getattr(x, _NUMBER, None) or IndexRange(-math.inf, math.inf, x)


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
    known = index_range(x)
    return replace(
        known, low=known.low + shift, high=known.high + shift, offset=known.offset + shift
    )
