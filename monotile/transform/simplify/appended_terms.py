"""Softmax with terms behind the keys, as attention sinks: scores of the keys, to which a few more are appended, of which no share is read.

    shares[k] = exp(x[k] - top) / (sum over all of x of exp(x - top)),  x = scores with others behind, perhaps less a number of the row

becomes the softmax of the scores alone, whose sum has further terms. The maximum that is subtracted from all of x makes no difference, so it may be
that of the scores:

    top' = max of scores            shares[k] = exp(scores[k] - top') / (sum of exp(scores - top') + exp(other - top') + ...)

so that what follows is attention (`kernels/attention`). A term that is far greater than all scores is infinite, and the shares are 0, as they should
be. Roundings of differences in 16 bits are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from monotile.analysis.dependence import at_axes, follows, unrounded
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    add,
    axes_of,
    cast,
    const,
    idx,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement, compute, statements
from monotile.transform.fusion.inline import element_of
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body
from monotile.transform.simplify.dce import eliminate_dead_code

MOST = 4  # terms behind the keys
LOWEST = -3.4028234663852886e38  # in float32: a maximum of no scores
Computes = Mapping[str, Compute]


class _Terms(NamedTuple):
    """x, along the axis at `place` of `powers`: `scores` for the first `keys` of its points, `others` behind."""

    shares: Compute
    powers: Compute
    top: Compute
    total: Compute
    place: int
    scores: Expr
    others: tuple[Expr, ...]

    @property
    def keys(self) -> int:
        return self.shares.axes[self.place].extent


def separate_terms(program: Program) -> Program:
    """`program` with such sums of exponentials separate."""
    computes = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
    found = {n: t for n, s in computes.items() if (t := _terms(s, computes)) is not None}
    if not found:
        return program
    names = Names(program)

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            t = found.get(s.out.name) if isinstance(s, Compute) else None
            out += [map_bodies(s, go)] if t is None else _separate(t, names)
        return tuple(out)

    return eliminate_dead_code(with_body(program, go(program.body)))


def _terms(shares: Compute, computes: Computes) -> _Terms | None:
    match unrounded(shares.body):
        case Binary("div", Load() as above, Load() as below) if not shares.reduce:
            powers, total = computes.get(above.tensor.name), computes.get(below.tensor.name)
        case _:
            return None
    if powers is None or total is None or not follows(shares, [above]):
        return None
    longer = [p for p, (a, b) in enumerate(zip(shares.axes, powers.axes, strict=True)) if a.extent < b.extent]  # fmt: skip
    match powers.body:
        case Unary("exp", Binary("sub", x, Load() as most)) if len(longer) == 1:
            top = computes.get(most.tensor.name)
        case _:
            return None
    (place,) = longer
    wide = all(
        s is not None and s.out.dtype is s.body.dtype is DType.F32 for s in (powers, total, top)
    )
    if (
        top is None
        or not wide
        or not 0 < powers.axes[place].extent - shares.axes[place].extent <= MOST
    ):
        return None
    key = powers.axes[place]
    rows = [a for a in powers.axes if a != key]
    if not (_reduces(total, "sum", Load(powers.out, powers.axes), key, rows) and _reduces(top, "max", x, key, rows)):  # fmt: skip
        return None
    others = [a for p, a in enumerate(shares.axes) if p != place]
    if not (at_axes(most.index, rows) and at_axes(below.index, others)):
        return None
    parts = _parts(x, key, shares.axes[place].extent, computes)
    return None if parts is None else _Terms(shares, powers, top, total, place, *parts)


def _reduces(c: Compute, combiner: str, x: Expr, key: Axis, rows: Sequence[Axis]) -> bool:
    """Whether `c` combines `x` along `key`, of which `rows` are the other axes."""
    if c.combiner != combiner or len(c.reduce) != 1 or len(c.axes) != len(rows):
        return False
    at: dict[str, Expr] = {a.name: (idx(0) if a.extent == 1 else b) for a, b in zip(rows, c.axes, strict=True)}  # fmt: skip
    whole: dict[str, Expr] = {a.name: (idx(0) if a.extent == 1 else a) for a in c.axes}
    wanted = substitute(x, at | {key.name: c.reduce[0]})
    return unrounded(substitute(c.body, whole)) == unrounded(substitute(wanted, whole))


def _parts(
    x: Expr, key: Axis, keys: int, computes: Computes
) -> tuple[Expr, tuple[Expr, ...]] | None:
    """The scores, and what is behind them."""
    match x:
        case Cast(y, dtype) if dtype.is_float and y.dtype.is_float:
            return _parts(y, key, keys, computes)
        case Binary("sub", y, m) if key not in axes_of(m) and _is_maximum(m, computes):
            return _parts(y, key, keys, computes)
        case Select(Binary("lt", i, Const(n)), scores, other) if i == key and n == keys:
            behind = (substitute(other, {key.name: idx(k)}) for k in range(keys, key.extent))
            return scores, tuple(behind)
        case Load(t, index):
            maker = computes.get(t.name)
            if maker is None or maker.reduce or key not in index:
                return None
            return _parts(element_of(maker, index), key, keys, computes)
        case _:
            return None


def _is_maximum(e: Expr, computes: Computes) -> bool:
    """Whether `e` is a maximum: infinite, or no number, only if the shares are none either."""
    x = unrounded(e)
    made = computes.get(x.tensor.name) if isinstance(x, Load) else None
    return made is not None and made.combiner == "max"


def _separate(t: _Terms, names: Names) -> Iterator[Compute]:
    """The statements of the shares."""
    key, keys, origin = t.powers.axes[t.place], t.keys, t.shares.origin
    shape = t.shares.out.shape
    rows = [n for p, n in enumerate(shape) if p != t.place]

    def tensor(stem: str, extents: list[int]) -> Tensor:
        return Tensor(names.fresh(stem), tuple(extents), DType.F32)

    def at(e: Expr, row: tuple[Expr, ...], k: Expr) -> Expr:
        axes = (a for a in t.powers.axes if a != key)
        return substitute(e, {a.name: i for a, i in zip(axes, row, strict=True)} | {key.name: k})

    def element(row: tuple[Expr, ...], k: Expr) -> tuple[Expr, ...]:
        return (*row[: t.place], k, *row[t.place :])

    def split(i: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
        return (*i[: t.place], *i[t.place + 1 :]), i[t.place]

    scores = tensor(f"{t.powers.out.name}_scores", [*shape])
    made = compute(scores, lambda *i: cast(at(t.scores, *split(i)), DType.F32), origin=origin)
    match t.scores:
        case Load(own, index) if own.shape == shape and at_axes(index, t.powers.axes):
            scores = own
        case _:
            yield made

    def score(row: tuple[Expr, ...], k: Expr) -> Expr:
        return cast(Load(scores, element(row, k)), DType.F32)

    top = tensor(f"{t.top.out.name}_keys", rows)
    lowest = const(LOWEST, DType.F32)
    yield compute(top, lambda *i: Binary("max", score(i[:-1], i[-1]), lowest), reduce=(keys,), combiner="max", origin=origin)  # fmt: skip

    def power(*i: Expr) -> Expr:
        row, k = split(i)
        return Unary("exp", Binary("sub", score(row, k), Load(top, row)))

    powers = tensor(f"{t.powers.out.name}_keys", [*shape])
    yield compute(powers, power, origin=origin)
    total = tensor(f"{t.total.out.name}_keys", rows)
    yield compute(total, lambda *i: Load(powers, element(i[:-1], i[-1])), reduce=(keys,), combiner="sum", origin=origin)  # fmt: skip

    def share(*i: Expr) -> Expr:
        row, k = split(i)
        below: Expr = Load(total, row)
        for other in t.others:
            less = Binary("sub", cast(at(other, row, k), DType.F32), Load(top, row))
            below = add(below, Unary("exp", less))
        return cast(Binary("div", Load(powers, i), below), t.shares.body.dtype)

    yield msgspec.structs.replace(compute(t.shares.out, share, origin=origin), live=t.shares.live)
