"""The semantics of each operation of `expr.py`, over NumPy arrays of any shape.

Arithmetic runs in the operation's type. For 16-bit floats each operation runs in float32, and
transcendental functions of all floats run in float64; the result is rounded once.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.expr import BITS_OF, COMPARE, FLOAT_UNARY, OF_BITS

Array = NDArray[Any]

# NumPy warns of overflow, division by zero and invalid values; here each has a defined result.
QUIET: Mapping[str, Any] = {"all": "ignore"}


def constant(value: bool | int | float | str, dtype: DType) -> Array:
    """A literal as an array of shape ()."""
    return convert(np.asarray(float(value) if isinstance(value, str) else value), dtype)


def convert(x: Array, dtype: DType) -> Array:
    """Cast: to integers towards zero (wrapping between integers), to bool by comparison with zero."""
    if x.dtype == dtype.numpy:
        return x
    with np.errstate(**QUIET):
        if dtype.is_float8:
            x = x.astype(np.float32)
            return _powers(x) if dtype is DType.F8E8M0 else x.astype(dtype.numpy)
        return x != 0 if dtype is DType.BOOL else x.astype(dtype.numpy)


def _powers(x: Array) -> Array:
    """float32 as float8_e8m0fnu, the exponent of float32, rounded as PyTorch does it: NaN and infinity are 255, and halfway is up,
    but from 2**-127, which is halfway to zero in the bits, down to itself."""
    size = np.ascontiguousarray(x).view(np.uint32) & 0x7FFFFFFF
    nearest = (size + 0x3FFFFF + (size >= 0x800000)) >> 23
    return np.minimum(nearest, 255).astype(np.uint8).view(DType.F8E8M0.numpy).reshape(x.shape)


def _elementwise(f: Callable[[float], float]) -> Callable[[Array], Array]:
    ufunc = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(ufunc(x)).astype(np.float64)


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # poles, and overflow of double
        return math.inf


_FLOAT_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "round": np.rint,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "erf": _elementwise(math.erf),
    "erfc": _elementwise(math.erfc),
    "lgamma": _elementwise(_lgamma),
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "cospi": lambda x: np.sin(np.pi * (0.5 - np.abs(x - 2 * np.rint(x / 2)))),
    "one_plus_erf": _elementwise(lambda x: math.erfc(-x)),
}


def _to_tf32(x: Array) -> Array:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    near = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), near, x)


def unary(op: str, x: Array, dtype: DType) -> Array:
    """The unary operation `op` on `x` of type `dtype`."""
    with np.errstate(**QUIET):
        match op:
            case "neg":
                return np.asarray(np.negative(x))
            case "abs":
                return np.asarray(np.abs(x))
            case "not":
                return np.asarray(np.logical_not(x) if dtype is DType.BOOL else np.invert(x))
            case "tf32" | "is_tf32" | "ascends":
                return x
            case "to_tf32":
                return _to_tf32(x)
            case _ if op == "bits" or op in OF_BITS:
                other = BITS_OF[dtype] if op == "bits" else OF_BITS[op]
                return np.ascontiguousarray(x).view(other.numpy).reshape(x.shape)
            case "isnan":
                return np.asarray(np.isnan(x))
            case "isinf":
                return np.asarray(np.isinf(x))
            case _ if op in FLOAT_UNARY:
                f = _FLOAT_UNARY.get(op) or cast("Callable[[Array], Array]", getattr(np, op))
                return convert(np.asarray(f(x.astype(np.float64))), dtype)
            case _:
                raise VerificationError(f"unknown unary operation {op!r}")


def _truncdiv(a: Array, b: Array) -> Array:
    quotient = np.floor_divide(a, b)
    inexact = np.multiply(quotient, b) != a
    return np.where(b == 0, 0, quotient + (inexact & ((a < 0) != (b < 0)))).astype(a.dtype)


def _ipow(a: Array, b: Array) -> Array:
    """Integer power by squaring; a negative exponent gives the truncated reciprocal (0, 1 or -1)."""
    base, exponent = np.broadcast_arrays(a, b)
    result = np.ones_like(base)
    square, rest = base.copy(), np.where(exponent < 0, 0, exponent).astype(np.int64)
    while np.any(rest > 0):
        result = np.where(rest & 1, result * square, result)
        square, rest = square * square, rest >> 1
    parity = np.where(exponent & 1, base, np.ones_like(base))
    reciprocal = np.where(np.abs(base) == 1, parity, np.zeros_like(base))
    return np.where(exponent < 0, reciprocal, result).astype(a.dtype)


def _shift(op: str, a: Array, b: Array) -> Array:
    """A shift by a negative amount, or by the width or more, shifts out every bit."""
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    if op == "shl":
        return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0).astype(a.dtype)
    return np.right_shift(a, np.where(inside, b, bits - 1)).astype(a.dtype) * (
        inside | (a < 0)
    ).astype(a.dtype)


def _philox(a: Array, b: Array) -> Array:
    """Two words of Philox 4x32-10, as `ir/expr.py` has it."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter, key = (np.asarray(x, np.int64).view(np.uint64) for x in (a, b))
    words = [counter & low, counter >> half, np.zeros_like(counter), np.zeros_like(counter)]
    keys = [key & low, key >> half]
    for _ in range(10):
        x, y = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [(y >> half) ^ words[1] ^ keys[0], y & low, (x >> half) ^ words[3] ^ keys[1], x & low]  # fmt: skip
        keys = [(keys[0] + np.uint64(0x9E3779B9)) & low, (keys[1] + np.uint64(0xBB67AE85)) & low]
    return (words[0] | words[1] << half).view(np.int64)


_COMPARE: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_EXACT: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "div": np.divide,
}
_FLOAT: Mapping[str, Callable[[Array, Array], Array]] = {
    "pow": np.power,
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "hypot": np.hypot,
    "fmod": np.fmod,
}
_INT: Mapping[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "truncdiv": _truncdiv,
    "rem": np.fmod,
    "ipow": _ipow,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shl": lambda a, b: _shift("shl", a, b),
    "shr": lambda a, b: _shift("shr", a, b),
    "philox": _philox,
}


def binary(op: str, a: Array, b: Array, dtype: DType) -> Array:
    """The binary operation `op`; `dtype` is the type of both sides."""
    wide = dtype.compute.numpy
    with np.errstate(**QUIET):
        if op in COMPARE:
            return np.asarray(_COMPARE[op](a.astype(wide), b.astype(wide)))
        if op in _EXACT:
            return convert(np.asarray(_EXACT[op](a.astype(wide), b.astype(wide))), dtype)
        if op in _FLOAT:
            return convert(
                np.asarray(_FLOAT[op](a.astype(np.float64), b.astype(np.float64))), dtype
            )
        if op == "nextafter":
            return np.asarray(np.nextafter(a, b))
        if op in _INT:
            return np.asarray(_INT[op](a, b)).astype(dtype.numpy)
    raise VerificationError(f"unknown binary operation {op!r}")


_REDUCE: Mapping[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def identity(combiner: str, dtype: DType) -> Array:
    """The result of an empty reduction; position 0 for `argmax` and `argmin`."""
    match combiner:
        case "sum" | "any" | "argmax" | "argmin":
            value: int | float = 0
        case "prod" | "all":
            value = 1
        case _ if combiner not in ("max", "min"):
            raise VerificationError(f"unknown combiner {combiner!r}")
        case _ if dtype.is_float:
            value = -math.inf if combiner == "max" else math.inf
        case _ if dtype is DType.BOOL:
            value = 0 if combiner == "max" else 1
        case _:
            info = np.iinfo(dtype.value)
            value = int(info.min if combiner == "max" else info.max)
    position = combiner in ("argmax", "argmin")
    return constant(value, DType.I64 if position else dtype)


def reduce(combiner: str, x: Array, axes: int, dtype: DType) -> Array:
    """`x` reduced over its last `axes` dimensions; int64 positions for `argmax` and `argmin`."""
    outer = x.shape[: x.ndim - axes]
    if 0 in x.shape[x.ndim - axes :]:
        return np.broadcast_to(identity(combiner, dtype), outer)
    wide = x.astype(dtype.compute.numpy, copy=False)
    if combiner in ("argmax", "argmin"):
        flat = wide.reshape(*outer, -1)
        return np.asarray(np.argmax(flat, -1) if combiner == "argmax" else np.argmin(flat, -1))
    over = tuple(range(x.ndim - axes, x.ndim))
    with np.errstate(**QUIET):
        found = _REDUCE[combiner].reduce(wide, axis=over, dtype=wide.dtype)
    return convert(np.asarray(found), dtype)


def combine_at(combiner: str, into: Array, index: tuple[Array, ...], value: Array) -> None:
    """into[index] = combine(into[index], value), in place, repeated indices included."""
    if combiner not in _REDUCE:
        raise VerificationError(f"a Scatter cannot combine with {combiner!r}")
    with np.errstate(**QUIET):
        _REDUCE[combiner].at(into, index, value)
