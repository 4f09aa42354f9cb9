"""Discrete Fourier transforms as products with tables of cosines and sines."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from monotile.frontends.builder import Builder, Unsupported, load, wrap
from monotile.frontends.torch.complex.dynamic_fourier import dynamic_table
from monotile.frontends.torch.complex.pair import Number, Pair
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Symbolic, Tensor, cast, const

DENSE = 256  # a table of at most 512 KB in float32
PRIME = 1024  # a table of at most 8 MB
Array = np.ndarray[Any, Any]


class Transform(msgspec.Struct, frozen=True):
    """out[k] = scale * sum over j < terms of x[j] exp(sign 2 pi i j k / n), for k < count, along one dimension.

    real: only the real parts of `out` are needed. mirrored: x is the first half of a sequence with x[n - j] = conj(x[j]), and the sum is
    over the whole sequence; the imaginary parts of x[0], and of x[n / 2], count as 0. power: of n, a further factor for a dynamic n.
    """

    n: int
    sign: int
    terms: int
    count: int
    scale: float = 1.0
    real: bool = False
    mirrored: bool = False
    power: float = 0.0


def _c2c(b: Builder, x: Pair, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    for d, n in _extents(x, dims):
        one = Transform(n, -1 if forward else 1, n, n, **_scale(normalization, n))
        x = _both(_along(b, x, d, one))
    return x


def _r2c(b: Builder, x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Pair:
    *others, (d, n) = _extents(x, dims)
    count = n // 2 + 1 if onesided else n
    half = _both(_along(b, x, d, Transform(n, -1, n, count, **_scale(normalization, n))))
    if _factor(n) != n:  # the tables of one product have zeros there
        half = Pair(half.real, _without_rounding(b, half.imag, d, n))
    return _c2c(b, half, [d for d, _ in others], normalization, forward=True)


def _without_rounding(b: Builder, imag: Tensor, d: int, n: int) -> Tensor:
    """The imaginary parts with zeros where those of a real sequence are 0: the phase of a negative number there is pi, not -pi."""

    def body(*i: Expr) -> Expr:
        kept = load(imag, i) if n % 2 else s.select(s.eq(i[d], n // 2), 0, load(imag, i))
        return s.select(s.eq(i[d], 0), 0, kept)

    return b.emit(imag.shape, imag.dtype, body, part="exact")


def _c2r(b: Builder, x: Pair, dims: Sequence[int], normalization: int, last: int) -> Tensor:
    *others, (d, held) = _extents(x, dims)
    half = _c2c(b, x, [d for d, _ in others], normalization, forward=False)
    if held < last // 2 + 1:
        raise Unsupported(f"{last} elements of {held}")
    one = Transform(
        last, 1, last // 2 + 1, last, real=True, mirrored=True, **_scale(normalization, last)
    )
    return _along(b, half, d, one)[0]


def _scale(normalization: int, n: int) -> dict[str, Any]:
    if isinstance(n, Symbolic):
        return {"power": (0.0, -0.5, -1.0)[normalization]}
    return {"scale": (1.0, n**-0.5, 1.0 / n)[normalization]}


def _extents(x: Number, dims: Sequence[int]) -> list[tuple[int, int]]:
    """Dimensions and their extents."""
    return [(d, x.shape[d]) for d in (wrap(d, len(x.shape)) for d in dims)]


Parts = tuple[Tensor, Tensor | None]  # without imaginary parts where all are 0, or not wanted


def _both(x: Parts) -> Pair:
    real, imag = x
    assert imag is not None
    return Pair(real, imag)


def _along(b: Builder, x: Number, d: int, t: Transform) -> Parts:
    """The transform of `x` along dimension `d`."""
    b.tf32 = False  # tables hold digits that TF32 has not
    given = (x.real, x.imag) if isinstance(x, Pair) else (x, None)
    return _transformed(b, given, d, t)


def _transformed(b: Builder, x: Parts, d: int, t: Transform) -> Parts:
    first = _factor(t.n)
    if first == t.n:
        return _dense(b, x, d, t)
    if t.mirrored:
        x = _each(x, lambda part: _doubled(b, part, d, t))
        t = msgspec.structs.replace(t, mirrored=False)
    return _chirped(b, x, d, t) if first == 0 else _split(b, x, d, t, first)


def _factor(n: int) -> int:
    """The factor by which a length is split: n for one product, 0 for a chirp."""
    if isinstance(n, Symbolic) or n <= DENSE or (n <= PRIME and _is_prime(n)):
        return n
    if max(_primes(n)) > PRIME:
        return 0
    return next(k for k in range(math.isqrt(n - 1) + 1, n) if n % k == 0)


def _primes(n: int) -> list[int]:
    """The prime factors, ascending."""
    for k in range(2, math.isqrt(n) + 1):
        if n % k == 0:
            return [k, *_primes(n // k)]
    return [n] if n > 1 else []


def _is_prime(n: int) -> bool:
    return _primes(n) == [n]


# Products


def _dense(b: Builder, x: Parts, d: int, t: Transform, at: int | None = None) -> Parts:
    """One product for each pair of components. at: the position of the result's dimension, if it differs from that in `x`."""
    real, imag = x
    cos, sin = _table(b, t, real.dtype)
    to = d if at is None else at

    def by(part: Tensor, table: Tensor, name: str) -> Tensor:
        shape = [n for k, n in enumerate(part.shape) if k != d]

        def term(*axes: Expr) -> Expr:
            *i, r = axes
            k = i.pop(to)
            return s.mul(load(part, [*i[:d], r, *i[d:]]), load(table, [r, k]))

        out = [*shape[:to], t.count, *shape[to:]]
        return b.emit(out, part.dtype, term, reduce=(t.terms,), combiner="sum", part=name)

    a, p = by(real, cos, "cos"), None if t.real else by(real, sin, "sin")
    if imag is None:
        return a, p
    c = by(imag, sin, "imag_sin")
    out = _emit(b, lambda i: s.sub(load(a, i), load(c, i)), a, "real")
    if p is None:
        return out, None
    q = by(imag, cos, "imag_cos")
    return out, _emit(b, lambda i: s.add(load(p, i), load(q, i)), a, "imag")


def _emit(b: Builder, body: Callable[[tuple[Expr, ...]], Expr], like: Tensor, name: str) -> Tensor:
    return b.emit(like.shape, like.dtype, lambda *i: body(i), part=name)


def _table(b: Builder, t: Transform, dtype: DType) -> Pair:
    """[terms, count] of cosines and of sines."""
    if isinstance(t.n, Symbolic):
        return dynamic_table(b, t.n, t.sign, (t.terms, t.count), t.power, t.mirrored, dtype)

    def make() -> Array:
        found = _roots(np.outer(np.arange(t.terms), np.arange(t.count)), t.n, t.sign) * t.scale
        if t.mirrored:
            found[1 : (t.n + 1) // 2] *= 2
        return found

    return _held(b, f"dft{t.n}", make, msgspec.structs.replace(t, real=False), dtype)


def _roots(k: Array, n: int, sign: int) -> Array:
    """exp(sign 2 pi i k / n) in float64, with exact zeros."""
    angle = 2 * np.pi * (k % n) / n
    parts = np.stack([np.cos(angle), sign * np.sin(angle)])
    parts[abs(parts) < 1e-14] = 0
    return parts[0] + 1j * parts[1]


def _held(b: Builder, name: str, make: Callable[[], Array], key: object, dtype: DType) -> Pair:
    """Complex constants, shared by all users of the same name and key."""

    def part(of: str) -> Tensor:
        return b.table(
            (name, key, dtype, of), f"{name}_{of}", lambda: getattr(make(), of).astype(dtype.numpy)
        )

    return Pair(part("real"), part("imag"))


# Lengths that are split


def _split(b: Builder, x: Parts, d: int, t: Transform, n1: int) -> Parts:
    """Cooley-Tukey for n = n1 n2: j = j1 n2 + j2 and k = k2 n1 + k1, so that jk / n = j1 k1 / n1 + j2 k1 / n + j2 k2 / n2, up to integers."""
    n2 = t.n // n1
    rows = -(-t.terms // n2)
    inner = Transform(n1, t.sign, rows, n1, t.scale)
    folded = _each(x, lambda part: _folded(b, part, d, n2, t.terms))
    whole = _twisted(b, _both(_transformed(b, folded, d, inner)), d, t)
    last = Transform(n2, t.sign, n2, -(-t.count // n1), real=t.real)
    if _factor(n2) == n2:
        found = _dense(b, whole, d + 1, last, at=d)
    else:
        found = _each(_transformed(b, whole, d + 1, last), lambda part: _swapped(b, part, d))
    return _each(found, lambda part: _flat(b, part, d, t.count))


def _each(x: Parts, f: Callable[[Tensor], Tensor]) -> Parts:
    return f(x[0]), None if x[1] is None else f(x[1])


def _folded(b: Builder, x: Tensor, d: int, n2: int, terms: int) -> Tensor:
    """The first `terms` elements of dimension `d` as rows of n2, with the last row padded with zeros."""
    rows = -(-terms // n2)
    shape = (*x.shape[:d], rows, n2, *x.shape[d + 1 :])

    def body(*i: Expr) -> Expr:
        j = s.add(s.mul(i[d], n2), i[d + 1])
        value = load(x, (*i[:d], j, *i[d + 2 :]))
        return value if rows * n2 == terms else s.select(s.lt(j, terms), value, 0)

    return b.emit(shape, x.dtype, body, part="rows")


def _twisted(b: Builder, x: Pair, d: int, t: Transform) -> Pair:
    """Multiplication with the twiddle factors exp(sign 2 pi i j k / n), where k and j are the indices of dimensions `d` and `d + 1`."""
    n1, n2 = x.shape[d], x.shape[d + 1]
    by = _held(
        b,
        f"twiddle{t.n}",
        lambda: _roots(np.outer(np.arange(n1), np.arange(n2)), t.n, t.sign),
        (n1, t.sign),
        x.real.dtype,
    )
    return _times(b, x, by, lambda i: i[d : d + 2])


def _times(
    b: Builder, x: Parts, by: Pair, at: Callable[[tuple[Expr, ...]], Sequence[Expr]]
) -> Pair:
    """Elements of `x` times constants, whose indices are those at `at`."""
    a, p = x

    def real(i: tuple[Expr, ...]) -> Expr:
        first = s.mul(load(a, i), load(by.real, at(i)))
        return first if p is None else s.sub(first, s.mul(load(p, i), load(by.imag, at(i))))

    def imag(i: tuple[Expr, ...]) -> Expr:
        first = s.mul(load(a, i), load(by.imag, at(i)))
        return first if p is None else s.add(first, s.mul(load(p, i), load(by.real, at(i))))

    return Pair(_emit(b, real, a, "turned_real"), _emit(b, imag, a, "turned_imag"))


def _swapped(b: Builder, x: Tensor, d: int) -> Tensor:
    """`x` with dimensions `d` and `d + 1` exchanged."""

    def at(i: Sequence[Expr]) -> list[Expr]:
        return [*i[:d], i[d + 1], i[d], *i[d + 2 :]]

    shape = [*x.shape[:d], x.shape[d + 1], x.shape[d], *x.shape[d + 2 :]]
    return b.emit(shape, x.dtype, lambda *i: load(x, at(i)), part="swapped")


def _flat(b: Builder, x: Tensor, d: int, count: int) -> Tensor:
    """Dimensions `d` and `d + 1` as one, cropped to `count` elements."""
    n1 = x.shape[d + 1]

    def body(*i: Expr) -> Expr:
        return load(x, [*i[:d], s.floordiv(i[d], n1), s.mod(i[d], n1), *i[d + 1 :]])

    return b.emit([*x.shape[:d], count, *x.shape[d + 2 :]], x.dtype, body, part="flat")


def _doubled(b: Builder, x: Tensor, d: int, t: Transform) -> Tensor:
    """Twice each element that also stands for its mirror image: the real part of the sum is then that over all elements."""
    once, twice = const(1.0, x.dtype), const(2.0, x.dtype)

    def body(*i: Expr) -> Expr:
        alone = s.either(s.eq(i[d], 0), s.eq(s.mul(i[d], 2), t.n))
        return s.mul(load(x, i), s.select(alone, once, twice))

    return b.emit(x.shape, x.dtype, body, part="doubled")


# Lengths with a large prime factor


def _chirped(b: Builder, x: Parts, d: int, t: Transform) -> Parts:
    """Bluestein's algorithm, by 2 jk = j j + k k - (k - j) (k - j): a convolution with a chirp, between products with its conjugate."""
    m = _smooth(t.terms + t.count - 1)

    def chirp(count: int) -> Pair:
        k = np.arange(count)
        return _held(
            b, f"chirp{t.n}", lambda: _roots(k * k, 2 * t.n, t.sign), (count, t.sign), x[0].dtype
        )

    def spectrum() -> Array:
        k = np.arange(m)
        back = np.where(k < t.count, k, m - k)  # negative positions are at the end
        held = (k < t.count) | (back < t.terms)
        return np.fft.fft(np.where(held, _roots(back * back, 2 * t.n, -t.sign), 0)) * (t.scale / m)

    def along(i: tuple[Expr, ...]) -> Sequence[Expr]:
        return i[d : d + 1]

    cut = _each(x, lambda part: _cut(b, part, d, t.terms))
    there = Transform(m, -1, t.terms, m)
    found = _both(_transformed(b, _times(b, cut, chirp(t.terms), along), d, there))
    by = _held(b, f"chirp{t.n}_spectrum", spectrum, t, x[0].dtype)
    back = Transform(m, 1, m, t.count)
    found = _both(_transformed(b, _times(b, found, by, along), d, back))
    return _times(b, found, chirp(t.count), along)


def _cut(b: Builder, x: Tensor, d: int, count: int) -> Tensor:
    """The first `count` elements of dimension `d`."""
    if x.shape[d] == count:
        return x
    shape = [*x.shape[:d], count, *x.shape[d + 1 :]]
    return b.emit(shape, x.dtype, lambda *i: load(x, i), part="cut")


def _smooth(n: int) -> int:
    """The smallest length from n on without a prime factor over 5."""
    return next(k for k in itertools.count(n) if max(_primes(k), default=1) <= 5)


def _wide(lowering: Callable[..., Number]) -> Callable[..., Number]:
    """The transform of float16 in float32, with rounded results: float16 tables would lose digits, and so would float16 sums between two
    products."""

    def lower(b: Builder, x: Number, *args: Any) -> Number:
        parts = x if isinstance(x, Pair) else (x,)
        if parts[0].dtype is not DType.F16:
            return lowering(b, x, *args)
        wide = [_cast(b, t, DType.F32) for t in parts]
        found = lowering(b, Pair(*wide) if len(wide) == 2 else wide[0], *args)
        if isinstance(found, Pair):
            return Pair(*(_cast(b, t, DType.F16) for t in found))
        return _cast(b, found, DType.F16)

    return lower


def _cast(b: Builder, x: Tensor, dtype: DType) -> Tensor:
    return b.emit(x.shape, dtype, lambda *i: cast(load(x, i), dtype), part=dtype.value)


FOURIER: Mapping[str, Callable[..., Number]] = {
    "_fft_c2c": _wide(_c2c),
    "_fft_r2c": _wide(_r2c),
    "_fft_c2r": _wide(_c2r),
}
