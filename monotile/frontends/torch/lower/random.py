"""Random numbers: PyTorch's distributions, from 64 random bits per element (`frontends/draws.py`)."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import (
    Builder,
    Operand,
    Unsupported,
    element,
    elementwise,
    load,
    raised,
)
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.sorting import order_of
from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]
Bits = Callable[[Expr], Expr]  # of a counter
_DIGITS = {DType.F16: 11, DType.BF16: 8, DType.F32: 24, DType.F64: 53}


def _bits(b: Builder) -> Bits:
    """64 random bits, int64, of a separate draw."""
    key = b.draws.key(b.loops)
    return lambda counter: Binary("philox", counter, key)


def _place(shape: Sequence[int], at: Sequence[Expr]) -> Expr:
    """The number of the element; with dynamic sizes, among the elements of the upper bounds."""
    place: Expr = idx(0)
    for n, i in zip(shape, at, strict=True):
        place = s.add(s.mul(place, int(n)), i)
    return place


def _result(b: Builder, f: Callable[[Bits, Expr, Sequence[Expr]], Expr]) -> Tensor:
    """The result of `f`, which takes the bits of a draw, the element's number and its axes."""
    bits = _bits(b)
    return b.result(lambda *i: f(bits, _place(b.shape, i), i))


# Numbers of bits.


def _some(bits: Expr, skip: int, count: int) -> Expr:
    """`count` of the bits, from the highest on after `skip`, as a number from 0: int32 if that is wide enough."""
    behind, word = 64 - skip - count, DType.I32 if count < 32 else DType.I64
    moved = Binary("shr", bits, idx(behind)) if behind else bits
    return Binary("bitand", cast(moved, word), const((1 << count) - 1, word))


def _unit(bits: Expr, dtype: DType) -> Expr:
    """A uniform number in [0, 1), in the compute type of `dtype`, from the highest bits."""
    if dtype not in _DIGITS:
        raise Unsupported(f"for {dtype}")
    digits = _DIGITS[dtype]
    return s.mul(cast(_some(bits, 0, digits), dtype.compute), 2.0**-digits)


def _log(bits: Expr, dtype: DType) -> Expr:
    """The logarithm of a number in (0, 1], from the bits that `_unit` leaves in float32."""
    skip, count = (0, 53) if dtype.compute is DType.F64 else (33, 31)
    whole = cast(_some(bits, skip, count), dtype.compute)
    return s.call("log", s.mul(s.add(whole, 1), 2.0**-count))


def _normal(bits: Bits, place: Expr, dtype: DType) -> Expr:
    """A normal number of mean 0 and deviation 1, in the compute type of `dtype`."""
    first = second = place
    if dtype.compute is DType.F64:
        first, second = s.mul(place, 2), s.add(s.mul(place, 2), 1)
    radius = s.call("sqrt", s.mul(_log(bits(first), dtype), -2))
    return s.mul(radius, s.call("cospi", s.mul(_unit(bits(second), dtype.compute), 2)))


def _exponential(bits: Expr, dtype: DType) -> Expr:
    """An exponential number of rate 1, in the compute type of `dtype`; above 0, as it is a divisor."""
    return s.maximum(s.neg(_log(bits, dtype)), 2.0 ** -(_DIGITS[dtype.compute] + 1))


def _integer(bits: Expr, low: int, count: int) -> Expr:
    """An int64 from `low` on, one of `count`."""
    if count <= 1 << 31:
        part = Binary("shr", s.mul(_some(bits, 0, 32), count), idx(32))
    elif count <= 1 << 63:
        whole = _some(bits, 0, 63)
        part = whole if count == 1 << 63 else s.mod(whole, count)
    else:
        raise Unsupported("a range of more than 63 bits")
    return s.add(part, low)


# Distributions of which each element is drawn by itself.


def rand(b: Builder, *_: object, **__: object) -> Tensor:
    return _result(b, lambda bits, e, _: _unit(bits(e), b.dtype))


def randn(b: Builder, *_: object, **__: object) -> Tensor:
    return _result(b, lambda bits, e, _: _normal(bits, e, b.dtype))


def uniform(b: Builder, x: Tensor, low: float = 0.0, high: float = 1.0, **_: object) -> Tensor:
    """In [low, high): a number that rounds to the end becomes the beginning, as in PyTorch on a GPU."""

    def body(bits: Bits, place: Expr, _: object) -> Expr:
        value = cast(s.add(s.mul(_unit(bits(place), b.dtype), high - low), low), b.dtype)
        return s.select(s.eq(value, high), low, value)

    return rand(b) if (low, high) == (0.0, 1.0) else _result(b, body)


def normal(b: Builder, mean: Operand, deviation: Operand = 1.0, *_: object, **__: object) -> Tensor:
    def body(bits: Bits, place: Expr, at: Sequence[Expr]) -> Expr:
        middle, by = (element(x, at, b.dtype.compute) for x in (mean, deviation))
        return s.add(s.mul(_normal(bits, place, b.dtype), by), middle)

    return _result(b, body)


def normal_functional(b: Builder, x: Tensor, mean: float = 0.0, deviation: float = 1.0, **_: object) -> Tensor:  # fmt: skip
    return normal(b, mean, deviation)


def log_normal(b: Builder, x: Tensor, mean: float = 1.0, deviation: float = 2.0, **_: object) -> Tensor:  # fmt: skip
    def body(bits: Bits, place: Expr, _: object) -> Expr:
        return s.exp(s.add(s.mul(_normal(bits, place, b.dtype), deviation), mean))

    return _result(b, body)


def exponential(b: Builder, x: Tensor, rate: float = 1.0, **_: object) -> Tensor:
    return _result(b, lambda bits, e, _: s.mul(_exponential(bits(e), b.dtype), 1 / rate))


def cauchy(b: Builder, x: Tensor, median: float = 0.0, scale: float = 1.0, **_: object) -> Tensor:
    def body(bits: Bits, place: Expr, _: object) -> Expr:
        angle = s.mul(s.sub(_unit(bits(place), b.dtype.compute), 0.5), math.pi)
        return s.add(s.mul(s.call("tan", angle), scale), median)

    return _result(b, body)


def geometric(b: Builder, x: Tensor, p: float, **_: object) -> Tensor:
    """The number of trials of probability p until one succeeds."""
    dtype = b.dtype if b.dtype.is_float else DType.F32
    rate = -math.log1p(-p) if p < 1 else math.inf

    def body(bits: Bits, place: Expr, _: object) -> Expr:
        trials = s.call("ceil", s.mul(_exponential(bits(place), dtype), 1 / rate))
        return s.maximum(trials, 1)

    return _result(b, body)


def _happens(bits: Expr, p: Operand, at: Sequence[Expr]) -> Expr:
    """True with probability p."""
    double = isinstance(p, Tensor) and p.dtype is DType.F64
    dtype = DType.F64 if double else DType.F32
    return s.lt(_unit(bits, dtype), element(p, at, dtype))


def bernoulli(b: Builder, p: Tensor, **_: object) -> Tensor:
    return _result(b, lambda bits, e, at: _happens(bits(e), p, at))


def bernoulli_p(b: Builder, x: Tensor, p: Operand = 0.5, **_: object) -> Tensor:
    return _result(b, lambda bits, e, at: _happens(bits(e), p, at))


def dropout(b: Builder, x: Tensor, p: float, train: bool) -> Tensor:
    """x / (1 - p) with probability 1 - p, else 0."""
    return _dropped(b, x, p)[0] if train and p else x


def native_dropout(b: Builder, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The result, and whether each element is kept. train: None is true."""
    if train is False:
        kept = b.result(lambda *_: const(True, DType.BOOL), index=1)
        return b.result(lambda *i: load(x, i), index=0), kept
    out, keep = _dropped(b, x, p)
    return out, b.result(lambda *i: keep(i), index=1)


def _dropped(b: Builder, x: Tensor, p: float) -> tuple[Tensor, Callable[[Sequence[Expr]], Expr]]:
    """The result, and which elements it keeps."""
    bits, scale = _bits(b), 1 / (1 - p) if p < 1 else 0.0

    def keep(i: Sequence[Expr]) -> Expr:
        return _happens(bits(_place(x.shape, i)), 1 - p, i)

    def value(*i: Expr) -> Expr:
        return s.select(keep(i), s.mul(raised(x, i), scale), 0)

    return b.result(value, index=0), keep


# Integers.


def _integers(b: Builder, low: int, high: int) -> Tensor:
    return _result(b, lambda bits, e, _: _integer(bits(e), low, high - low))


def randint(b: Builder, high: int, size: Sequence[int], **_: object) -> Tensor:
    return _integers(b, 0, high)


def randint_low(b: Builder, low: int, high: int, size: Sequence[int], **_: object) -> Tensor:
    return _integers(b, low, high)


def randint_like(b: Builder, x: Tensor, high: int, **_: object) -> Tensor:
    return _integers(b, 0, high)


def randint_like_low(b: Builder, x: Tensor, low: int, high: int, **_: object) -> Tensor:
    return _integers(b, low, high)


def random(b: Builder, x: Tensor, **_: object) -> Tensor:
    """Integers from 0 on that the type represents exactly."""
    if b.dtype.is_float:
        return _integers(b, 0, (1 << _DIGITS[b.dtype]) + 1)
    width = 8 * b.dtype.itemsize - (b.dtype is not DType.U8)
    return _integers(b, 0, 2 if b.dtype is DType.BOOL else 1 << width)


# Orders and choices.


def randperm(b: Builder, n: int, **_: object) -> Tensor:
    """The sort order of random numbers."""
    bits = _bits(b)
    keys = b.emit((n,), DType.I64, lambda i: bits(i), part="keys")
    order = order_of(b, keys, 0, False, (n,))
    return order if b.dtype is DType.I64 else b.result(lambda i: load(order, (i,)))


def multinomial(b: Builder, x: Tensor, samples: int, replacement: bool = False, **_: object) -> Tensor:  # fmt: skip
    """x: weights, [n] or [rows, n]."""
    *rows, n = x.shape
    bits, dtype = _bits(b), x.dtype.compute

    def speed(i: Sequence[Expr], place: Expr) -> Expr:
        return s.div(raised(x, i), _exponential(bits(place), dtype))

    if samples > 1 and not replacement:
        race = b.emit(x.shape, dtype, lambda *i: speed(i, _place(x.shape, i)), part="race")
        return order_of(b, race, len(rows), True, b.shape)

    def one(*axes: Expr) -> Expr:
        return speed((*axes[: len(rows)], axes[-1]), _place((*b.shape, n), axes))

    return b.result(one, reduce=(n,), combiner="argmax")


def philox(b: Builder, counter: Tensor, key: Tensor) -> Tensor:
    return elementwise(b, (counter, key), lambda c, k: Binary("philox", c, k), DType.I64)


LOWERINGS: Mapping[str, Lowering] = {
    "monotile.philox": philox,
    **dict.fromkeys(("aten.rand.default", "aten.rand.generator", "aten.rand_like"), rand),
    **dict.fromkeys(("aten.randn.default", "aten.randn.generator", "aten.randn_like"), randn),
    "aten.uniform.default": uniform,
    "aten.normal_functional.default": normal_functional,
    "aten.normal.Tensor_Tensor": normal,
    "aten.normal.Tensor_float": normal,
    "aten.normal.float_Tensor": normal,
    "aten.normal.float_float": normal,
    "aten.log_normal.default": log_normal,
    "aten.exponential.default": exponential,
    "aten.cauchy.default": cauchy,
    "aten.geometric.default": geometric,
    "aten.bernoulli.default": bernoulli,
    "aten.bernoulli.p": bernoulli_p,
    "aten.bernoulli.Tensor": bernoulli_p,
    "aten.dropout.default": dropout,
    "aten.native_dropout.default": native_dropout,
    "aten.randint.default": randint,
    "aten.randint.generator": randint,
    "aten.randint.low": randint_low,
    "aten.randint.low_generator": randint_low,
    "aten.randint_like.default": randint_like,
    "aten.randint_like.low_dtype": randint_like_low,
    "aten.random.default": random,
    "aten.random.to": randint_like,
    "aten.randperm.default": randperm,
    "aten.randperm.generator": randperm,
    "aten.multinomial.default": multinomial,
}
