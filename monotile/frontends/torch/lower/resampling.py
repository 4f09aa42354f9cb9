"""Interpolation between the elements of a grid (`torch.nn.functional.interpolate`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.sizes.size import most
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const

Lowering = Callable[..., Any]
Factors = Sequence[float] | float | None


def factors_of(rank: int, given: Sequence[Factors]) -> list[float | None]:
    """Scale factors, given as one list or as one argument per dimension; None: by the two sizes."""
    flat: list[float | None] = []
    for g in given:
        if isinstance(g, Sequence):
            flat.extend(g)
        else:
            flat.append(g)
    return flat if len(flat) == rank else [None] * rank


def ratio(n: int, m: int, factor: float | None) -> float:
    """Input elements per output element."""
    return 1.0 / factor if factor is not None and factor > 0 else n / m


def _nearest_source(e: Expr, n: int, m: int, factor: float | None, exact: bool) -> Expr:
    """The input element of output element `e`: floor((e + 1/2) * ratio), or floor(e * ratio)."""
    step = ratio(n, m, factor)
    if m % n == 0 and step == n / m:
        return s.floordiv(e, m // n)
    if n % m == 0 and step == n // m and not exact:
        return s.mul(e, n // m)
    place = cast(e, DType.F32)
    if exact:
        place = s.add(place, 0.5)
    return s.minimum(cast(s.mul(place, step), DType.I64), n - 1)


def _nearest(rank: int, exact: bool) -> Lowering:
    def lower(b: Builder, x: Tensor, output_size: object, *given: Factors) -> Tensor:
        factors = factors_of(rank, given)
        lead = len(x.shape) - rank

        def body(*i: Expr) -> Expr:
            at = [
                _nearest_source(e, n, m, f, exact)
                for e, n, m, f in zip(
                    i[lead:], x.shape[lead:], b.shape[lead:], factors, strict=True
                )
            ]
            return load(x, [*i[:lead], *at])

        return b.result(body)

    return lower


def _place(
    e: Expr, n: int, m: int, factor: float | None, align_corners: bool, dtype: DType
) -> Expr:
    """The position of output element `e` among the input elements."""
    at = cast(e, dtype)
    if align_corners:
        return s.mul(at, (n - 1) / most(m - 1, 1))  # the only element of one is number 0
    return s.sub(s.mul(s.add(at, 0.5), ratio(n, m, factor)), 0.5)


def _identity(x: Tensor, b: Builder, factors: Sequence[float | None], lead: int) -> bool:
    """Whether every output element is an input element, which eager PyTorch copies then."""
    steps = (
        ratio(n, m, f) for n, m, f in zip(x.shape[lead:], b.shape[lead:], factors, strict=True)
    )
    return x.shape == b.shape and all(step == 1.0 for step in steps)


def _linear(rank: int) -> Lowering:
    """Interpolation between the two neighbours along each dimension, 2 ** rank elements in all."""

    def lower(
        b: Builder, x: Tensor, output_size: object, align_corners: bool, *given: Factors
    ) -> Tensor:
        factors = factors_of(rank, given)
        lead = len(x.shape) - rank
        wide = x.dtype.compute
        if _identity(x, b, factors, lead):
            return b.result(lambda *i: load(x, i))

        def body(*i: Expr) -> Expr:
            sides: list[tuple[tuple[Expr, Expr], tuple[Expr, Expr]]] = []
            for e, n, m, f in zip(i[lead:], x.shape[lead:], b.shape[lead:], factors, strict=True):
                place = s.maximum(_place(e, n, m, f, align_corners, wide), 0)
                low = s.minimum(cast(place, DType.I64), n - 1)
                share = s.minimum(s.sub(place, cast(low, wide)), 1)
                high = s.minimum(s.add(low, 1), n - 1)
                sides.append(((low, s.sub(1, share)), (high, share)))

            def blend(index: list[Expr], rest: Sequence[Any]) -> Expr:
                if not rest:
                    return raised(x, [*i[:lead], *index])
                (low, near), (high, far) = rest[0]
                return s.add(
                    s.mul(blend([*index, low], rest[1:]), near),
                    s.mul(blend([*index, high], rest[1:]), far),
                )

            return blend([], sides)

        return b.result(body)

    return lower


def cubic_weights(t: Expr) -> list[Expr]:
    """The weights of the four neighbours of a position `t` between the second and the third (Keys, a = -0.75)."""
    a = -0.75

    def near(d: Expr) -> Expr:
        inner = s.sub(s.mul(d, a + 2), a + 3)
        return s.add(s.mul(s.mul(inner, d), d), 1)

    def far(d: Expr) -> Expr:
        inner = s.add(s.mul(s.sub(s.mul(d, a), 5 * a), d), 8 * a)
        return s.sub(s.mul(inner, d), 4 * a)

    rest = s.sub(1, t)
    return [far(s.add(t, 1)), near(t), near(rest), far(s.add(rest, 1))]


def bicubic(
    b: Builder, x: Tensor, output_size: object, align_corners: bool, *given: Factors
) -> Tensor:
    """Interpolation along the columns, then along the rows: two statements if the first has at most as many elements as the second, else one."""
    factors = factors_of(2, given)
    wide, lead = x.dtype.compute, len(x.shape) - 2
    if _identity(x, b, factors, lead):
        return b.result(lambda *i: load(x, i))
    (n, columns), (m, wanted) = x.shape[lead:], b.shape[lead:]

    def along_columns(*i: Expr) -> Expr:
        *before, y, z = i
        taps = _cubic_taps(_place(z, columns, wanted, factors[1], align_corners, wide), columns)
        return _weighted([(raised(x, [*before, y, at]), weight) for at, weight in taps])

    parts = int(n) <= int(m)
    made = b.emit((*x.shape[:-1], wanted), wide, along_columns, part="columns") if parts else None

    def body(*i: Expr) -> Expr:
        *before, y, z = i
        taps = _cubic_taps(_place(y, n, m, factors[0], align_corners, wide), n)
        rows = [([*before, at, z], weight) for at, weight in taps]
        return _weighted([(load(made, at) if made else along_columns(*at), w) for at, w in rows])

    return b.result(body)


def _cubic_taps(place: Expr, n: int) -> list[tuple[Expr, Expr]]:
    """The four of `n` elements around `place`, clamped at the borders, and their weights."""
    low = s.call("floor", place)
    first = cast(low, DType.I64)
    at = (s.minimum(s.maximum(s.add(first, k - 1), 0), n - 1) for k in range(4))
    return list(zip(at, cubic_weights(s.sub(place, low)), strict=True))


def _weighted(terms: Sequence[tuple[Expr, Expr]]) -> Expr:
    total: Expr = const(0, terms[0][0].dtype)
    for value, weight in terms:
        total = s.add(total, s.mul(value, weight))
    return total


LOWERINGS: Mapping[str, Lowering] = {
    **{f"aten.upsample_nearest{n}d": _nearest(n, exact=False) for n in (1, 2, 3)},
    **{f"aten._upsample_nearest_exact{n}d": _nearest(n, exact=True) for n in (1, 2, 3)},
    "aten.upsample_linear1d": _linear(1),
    "aten.upsample_bilinear2d": _linear(2),
    "aten.upsample_trilinear3d": _linear(3),
    "aten.upsample_bicubic2d": bicubic,
}
