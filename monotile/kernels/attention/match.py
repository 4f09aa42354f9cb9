"""Matches softmax-weighted sums: scores, their softmax along the keys, and the mixture of the values by it.

Found by structure: `softmax(f(queries · keys)) · values` of any model, however it was written. And a part of one
(`schedule/split_keys.py`): exponentials · values, with the maximum score and the sum of the exponentials as further results.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monotile.analysis.contraction import contraction, factors, grain, in_tf32
from monotile.analysis.dependence import at_axes, follows, loads_of, unrounded
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Const, Expr, Load, Unary, axes_of, idx, loads
from monotile.ir.program import Compute
from monotile.kernels.attention.method import Attend
from monotile.kernels.common.product import PASSES

Computes = Mapping[str, Compute]


@dataclass(frozen=True, slots=True)
class Attention:
    """result[batch, row, column] = sum over keys of shares[batch, row, key] * values[batch, key, column].

    products, scores: the sum of products of queries and keys, and its element-wise followers, in order; the scores are the last of them.
    top, powers, total, shares: their softmax (maximum, exponentials, sum, probabilities). queries, keys: the factors of `products`. values:
    the factor of `result`.
    swapped: of both products, whether queries, and weights, are the second factor. key: the axis of `products` (and its followers) along
    the keys.
    rows: positions in the axes of `result` along which all queries have the same keys and values; of a single query, an axis of one value.
    heads: the position of an axis of which each aligned run of `run` shares them too (grouped-query attention); None where there is none,
    and run is 1. column: position likewise.
    least: a lower bound of total (0: any value). scale: the positive factor from products to scores, if scores are nothing else; else None.
    point: maps the axes of `products` other than `key`, by name, to those of `result`.

    For a part of the keys there are no shares: the values are weighted by the exponentials, and others may read `top` and `total` too.
    `top` is then at least `lowest`.
    """

    products: Compute
    scores: tuple[Compute, ...]
    top: Compute
    powers: Compute
    total: Compute
    shares: Compute | None
    result: Compute
    queries: Expr
    keys: Expr
    values: Expr
    key: Axis
    rows: tuple[int, ...]
    heads: int | None
    run: int
    column: int
    least: float
    scale: float | None
    point: Mapping[str, Expr]
    swapped: tuple[bool, bool]

    @property
    def along(self) -> int:
        """The position of the keys in the axes of the scores."""
        return self.products.axes.index(self.key)

    @property
    def size(self) -> int:
        """Bytes of an element of the operands."""
        return self.values.dtype.itemsize

    @property
    def passes(self) -> int:
        """Tensor-core products for one product."""
        rounded = in_tf32(self.products) and in_tf32(self.result)
        return 1 if rounded else PASSES[self.values.dtype]

    @property
    def inner(self) -> tuple[Compute, ...]:
        """All but the result, in order."""
        shares = () if self.shares is None else (self.shares,)
        return (self.products, *self.scores, self.top, self.powers, self.total, *shares)

    @property
    def lowest(self) -> float | None:
        """For a part of the keys, a lower bound of its maximum score; None for all keys."""
        return None if self.shares is not None else _lowest(self.top)

    def of_row(self, s: Compute) -> dict[str, Expr]:
        """The axes of `top`, or of `total`, in those of `result`."""
        axes = (a for a in self.products.axes if a != self.key)
        return {a.name: self.point[b.name] for a, b in zip(s.axes, axes, strict=True)}


def attention(result: Compute, computes: Computes) -> Attention | None:
    """The softmax-weighted sum whose last statement is `result`, or None. computes: its possible operands, by name."""
    mixture = contraction(result)
    if mixture is None or len(result.reduce) != 1 or not mixture.n:
        return None
    for swapped in (mixture.swapped, not mixture.swapped):
        weights, values = factors(result, swapped=swapped)
        weights = unrounded(weights)
        if isinstance(weights, Load):
            found = _of(result, weights, values, swapped, computes)
            if found is not None and not _reads_itself(found):
                return found
    return None


def _reads_itself(found: Attention) -> bool:
    """Whether an operand is itself an intermediate result, as in softmax(x) · softmax(x)ᵀ."""
    inner = {c.out for c in found.inner}
    operands = (found.queries, found.keys, found.values)
    return any(x.tensor in inner for e in operands for x in loads(e))


def _of(
    result: Compute, weights: Load, values: Expr, swapped: bool, computes: Computes
) -> Attention | None:
    weight = computes.get(weights.tensor.name)
    along = result.reduce[0]
    if weight is None or weights.index.count(along) != 1 or along not in axes_of(values):
        return None
    place = weights.index.index(along)
    parts, shares = softmax(weight, place, computes), weight
    if parts is not None and parts.more:
        return None
    if parts is None:
        parts, shares = _part(weight, place, computes), None
    if parts is None:
        return None
    powers, total, top, scores, least, _ = parts
    chain = _followed(scores, computes)
    found = contraction(chain[0]) if chain else None
    if found is None or len(chain[0].reduce) < 1:
        return None
    products, key = chain[0], chain[0].axes[place]
    if key.extent != along.extent:
        return None
    sides = ((found.left, found.m), (found.right, found.n))
    (keys, own), (queries, _) = sides if key in axes_of(found.left) else sides[::-1]
    apart = own == (place,) or (
        shares is None and place in own
    )  # keys of parts have batches of theirs
    if not apart or any(p == place for p, _ in found.grains):
        return None
    point = _point(products, weights, place)
    if point is None:
        return None
    rows, heads, run = _rows(result, (queries, keys, values), point)
    if not rows and heads is None:
        return None
    columns = _columns(result, weights, values)
    if len(columns) != 1:
        return None
    return Attention(
        products=products, scores=chain[1:], top=top, powers=powers, total=total, shares=shares,
        result=result, queries=queries, keys=keys, values=values, key=key,
        rows=rows, heads=heads, run=run, column=columns[0],
        least=least, scale=_scale(products, chain[1:]), point=point, swapped=(queries != factors(products)[0], swapped),
    )  # fmt: skip


def stored(method: Attend, computes: Sequence[Compute]) -> Attention:
    """The match that a step's method describes. computes: the step's, up to the result."""
    *before, result = computes
    shares = None if method.part else before.pop()
    products, *scores, top, powers, total = before
    queries, keys = factors(products, swapped=method.queries_second)
    weights, values = factors(result, swapped=method.weights_second)
    weights = unrounded(weights)
    assert isinstance(weights, Load)
    point = _point(products, weights, method.along)
    assert point is not None
    key = products.axes[method.along]
    rows, heads, run = _rows(result, (queries, keys, values), point)
    return Attention(
        products=products, scores=tuple(scores), top=top, powers=powers, total=total, shares=shares,
        result=result, queries=queries, keys=keys, values=values, key=key,
        rows=rows, heads=heads, run=run, column=_columns(result, weights, values)[0],
        least=method.least, scale=method.scale, point=point, swapped=(method.queries_second, method.weights_second),
    )  # fmt: skip


def _rows(
    result: Compute, read: tuple[Expr, Expr, Expr], point: Mapping[str, Expr]
) -> tuple[tuple[int, ...], int | None, int]:
    """`Attention.rows`, `heads` and `run`. read: queries, keys and values. point: as there."""
    queries, keys, values = read
    rows: list[int] = []
    shared: list[tuple[int, int]] = []
    for p, axis in enumerate(result.axes):
        for own in (a for a in axes_of(queries) if point.get(a.name) == axis):
            run = math.gcd(grain(keys, own), grain(values, axis))
            if run == 0:
                rows.append(p)
            elif run > 1 and axis.extent % run == 0 and grain(queries, own) == 1:
                shared.append((p, run))
    heads, run = shared[0] if len(shared) == 1 else (None, 1)
    if not rows and heads is None:  # of a single query, which has no axis of its own
        rows = [p for p, axis in enumerate(result.axes) if axis.extent == 1][-1:]
    return tuple(rows), heads, run


def _columns(result: Compute, weights: Load, values: Expr) -> list[int]:
    """The positions of the axes of `result` that the values have and the weights do not."""
    shared = frozenset(a for i in weights.index for a in axes_of(i))
    return [p for p, a in enumerate(result.axes) if a in axes_of(values) and a not in shared]


class Softmax(NamedTuple):
    """powers / max(total + more, least). powers: exp(scores - top). more: numbers of the row, which read `top` alone of the four."""

    powers: Compute
    total: Compute
    top: Compute
    scores: Compute
    least: float
    more: tuple[Expr, ...]


def softmax(shares: Compute, place: int, computes: Computes) -> Softmax | None:
    """`shares` as a softmax along its axis at `place`, if it is one."""
    match unrounded(shares.body):
        case Binary("div", Load() as above, below) if not shares.reduce:
            pass
        case _:
            return None
    least = 0.0
    match below:
        case Binary("max", lower, Const(float() as least)):
            below = lower
        case _:
            pass
    more: list[Expr] = []
    while isinstance(below, Binary) and below.op == "add":
        below, term = below.a, below.b
        more.append(term)
    if not isinstance(below, Load):
        return None
    powers, total = computes.get(above.tensor.name), computes.get(below.tensor.name)
    if powers is None or total is None or not follows(shares, [above]):
        return None
    found = _powers(powers, place, computes)
    if found is None or not _without(below, shares, place) or not _totals(total, powers, place):
        return None
    top, scores = found
    inner = {powers.out, total.out, scores.out}
    if any(shares.axes[place] in axes_of(e) or inner & {x.tensor for x in loads(e)} for e in more):
        return None
    return Softmax(powers, total, top, scores, least, tuple(more))


def _part(powers: Compute, place: int, computes: Computes) -> Softmax | None:
    """The powers of a softmax along the axis at `place`, which are not divided before they weight the values."""
    found = _powers(powers, place, computes)
    if found is None or _lowest(found[0]) is None:
        return None
    totals = [s for s in computes.values() if _totals(s, powers, place)]
    return Softmax(powers, totals[0], *found, 0.0, ()) if len(totals) == 1 else None


def _lowest(top: Compute) -> float | None:
    """A lower bound of the maximum score, if that is a number."""
    match unrounded(top.body):
        case Binary("max", _, Const(float() as lowest)) if math.isfinite(lowest):
            return lowest
        case _:
            return None


def _totals(total: Compute, powers: Compute, place: int) -> bool:
    """Whether `total` sums `powers` along their axis at `place`."""
    return total.combiner == "sum" and _along(unrounded(total.body), total, powers, place)


def _powers(powers: Compute, place: int, computes: Computes) -> tuple[Compute, Compute] | None:
    """(top, scores) of powers = exp(scores - top), where top is the maximum score along the axis at `place`."""
    if powers.reduce:
        return None
    match powers.body:
        case Unary("exp", Binary("sub", x, Load() as subtracted)):
            pass
        case _:
            return None
    score = unrounded(x)
    top = computes.get(subtracted.tensor.name)
    scores = computes.get(score.tensor.name) if isinstance(score, Load) else None
    if top is None or scores is None or not isinstance(score, Load):
        return None
    match unrounded(top.body):
        case Binary("max", most, Const()):
            pass
        case most:
            pass
    if not follows(powers, [score]) or not _without(subtracted, powers, place):
        return None
    largest = top.combiner == "max" and _along(unrounded(most), top, scores, place)
    return (top, scores) if largest else None


def _scale(products: Compute, scores: tuple[Compute, ...]) -> float | None:
    """`Attention.scale`."""
    if len(scores) != 1 or products.out.dtype is not DType.F32:
        return None
    match scores[0].body:
        case Binary("mul", Load(made), Const(float(value), DType.F32)) | Binary(
            "mul", Const(float(value), DType.F32), Load(made)
        ) if made == products.out and 0 < value < math.inf:
            return value
        case _:
            return None


def _along(x: Expr, reduced: Compute, over: Compute, place: int) -> bool:
    """Whether `reduced` reduces `over` along its axis at `place`, at its own position."""
    if not isinstance(x, Load) or x.tensor.name != over.out.name or len(reduced.reduce) != 1:
        return False
    rest = [i for p, i in enumerate(x.index) if p != place]
    along = reduced.reduce[0]
    return (
        at_axes(rest, reduced.axes)
        and x.index[place] == along
        and along.extent == over.out.shape[place]
    )


def _without(x: Load, s: Compute, place: int) -> bool:
    """Whether `s` reads x at its own position, without the axis at `place`."""
    return at_axes(x.index, [a for p, a in enumerate(s.axes) if p != place])


def _followed(scores: Compute, computes: Computes) -> tuple[Compute, ...]:
    """The sum of products from which `scores` is computed element by element, and its followers; () if there is none, or are several.
    Other operands of that shape, as a bias, are computed without sums."""
    known: dict[str, tuple[Compute, ...]] = {}

    def chain(s: Compute) -> tuple[Compute, ...]:
        if s.reduce:
            return (s,)
        if s.out.name not in known:
            before = {x.tensor.name for x in loads_of(s) if _shaped(x, s, computes)}
            found = [c for n in sorted(before) if (c := chain(computes[n]))]
            known[s.out.name] = (*found[0], s) if len(found) == 1 else ()
        return known[s.out.name]

    return chain(scores)


def _shaped(x: Load, s: Compute, computes: Computes) -> bool:
    """Whether x is an element-wise operand of `s`: computed, of its shape, at its own position."""
    made = computes.get(x.tensor.name)
    return made is not None and made.out.shape == s.out.shape and follows(s, [x])


def _point(products: Compute, weights: Load, place: int) -> dict[str, Expr] | None:
    """The axes of `products` other than the keys', as the result names them: each a separate axis."""
    out: dict[str, Expr] = {}
    for p, (axis, i) in enumerate(zip(products.axes, weights.index, strict=True)):
        if p == place:
            continue
        alone = isinstance(i, Axis) and i not in out.values()
        if not alone and not (axis.extent == 1 and i == idx(0)):
            return None
        out[axis.name] = i
    return out
