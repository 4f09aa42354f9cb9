"""Splits long reductions to few values, so that all workers share them: the statistics of a normalisation over an image or a whole signal.

A result is a task, so with fewer results than workers most of the machine waits. Where the results are pieces of lines (the channel groups
of an image), many of them are read slowly too. The parts (`parts.py`) are pieces of one reduced axis. A reduced axis whose positions are
neighbours in memory may be kept, so that workers read whole lines.

The sum of squared deviations from a mean is computed in the same pass, around the mean of each part (Chan, Golub and LeVeque, 1979). With n
terms in a part, and for any value that is subtracted from each term,

    sum over the r of part p of (f - value)^2 = sum over them of (f - mean of p)^2 + n * (mean of p - value)^2

One stage then reads the normalised tensor, and another, of few values, finishes both sums.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from monotile.analysis.affine import offset
from monotile.choice.digest import digest_statements
from monotile.choice.spec import Value
from monotile.ir.expr import Binary, Expr, Load, add, axes_of, const, loads, mul, sub
from monotile.ir.program import Compute, Program, Statement
from monotile.kernels.common.cost import SECTOR
from monotile.kernels.draft import Context
from monotile.kernels.group import single
from monotile.kernels.registry import tiled
from monotile.schedule.parts import COMBINE, FEW, Parts, combined, over, partial, straight
from monotile.schedule.tiles import cut
from monotile.targets.target import Target
from monotile.transform.predicates import fused_predicate
from monotile.transform.rewrite import Body, map_bodies, with_body

MUCH = 1 << 15  # terms of all results together, from which on splits are tried
TURNS = (1, 2, 4)  # parts for each worker, about
MOST_BESIDE = 64  # positions of a kept axis
KEPT = 0.5  # of the last-level cache: data up to this size that workers read in two passes is still there in the second


def split_long_reductions(program: Program, target: Target, context: Context) -> Program:
    """`program` with its long reductions to few values split, where the cost model predicts that to be faster."""

    def go(body: Body) -> Body:
        body = tuple(map_bodies(s, go) for s in body)
        for s in body:
            if (
                isinstance(s, Compute)
                and any(s is x for x in body)
                and _is_long(s, target, context)
            ):
                body = _split(body, s, context)
        return body

    return with_body(program, go(program.body))


def _is_long(c: Compute, target: Target, context: Context) -> bool:
    return (
        c.combiner in COMBINE
        and not c.live
        and c.out.size * math.prod(a.extent for a in c.reduce) >= MUCH
        and bool(loads(c.body))
        and (_few(c, target) or _neighbours(c) is not None)
        and fused_predicate(c) is None
        and not tiled(c, context)
    )


def _few(c: Compute, target: Target) -> bool:
    """Whether there are so few results that most workers would be idle."""
    return target.has.many_workers and 2 * _apart(c) <= target.workers


def _apart(c: Compute) -> int:
    """Results that share no sector of memory. Those of columns are neighbours, which one worker sums side by side. Those of an image
    count one by one, since it may be summed where its rows are computed (`split.py`)."""
    where = offset(_most(c))
    if len(c.reduce) > 1 or not c.axes or where.coefficient(c.axes[-1]) != 1:
        return c.out.size
    last = c.axes[-1].extent
    return c.out.size // last * -(-last * _most(c).tensor.dtype.itemsize // SECTOR)


@dataclass(frozen=True, slots=True)
class _Way:
    """A long sum, unsplit or in parts, and the sum of squared deviations of the same terms, if there is one."""

    whole: Compute
    squares: Compute | None
    parts: Parts | None = None

    @property
    def value(self) -> Value:
        p = self.parts
        return None if p is None else [p.axis, p.count, p.beside]

    def stages(self) -> tuple[tuple[Compute, ...], ...]:
        """The statements computed side by side, in order."""
        c, q, parts = self.whole, self.squares, self.parts
        if parts is None:
            return tuple((_shortest(s),) for s in (c, q) if s is not None)
        first = partial(c, parts)
        if q is None:
            return (first,), (combined(c, first.out),)
        each = const(1 / parts.terms(c), c.body.dtype)

        def apart(term: Expr, part: Sequence[Expr]) -> Expr:
            rest = sub(term, mul(Load(first.out, tuple(part)), each))
            return mul(rest, rest)

        second = partial(c, parts, q.out.name, apart)
        axes, index = over(q, first.out)
        off = sub(mul(Load(first.out, index), each), _value(q))
        more = mul(mul(off, off), const(float(parts.terms(c)), c.body.dtype))
        term = add(Load(second.out, index), more)
        last = Compute(q.out, q.axes, axes, q.combiner, term, q.origin)
        return (first, second), (combined(c, first.out), last)

    def seconds(self, context: Context) -> float:
        target = context.target
        each = [cut(single(c), context) for stage in self.stages() for c in stage]
        spent = sum(d.seconds if d else math.inf for d in each)
        spent += target.barrier_seconds * len(self.stages())
        return spent + self._reads(target) * _most(self.whole).tensor.nbytes / target.dram_bandwidth

    def _reads(self, target: Target) -> int:
        """How often the terms are read from memory."""
        passes, cache = 1 if self.squares is None else 2, KEPT * target.l2_bytes
        nbytes = _most(self.whole).tensor.nbytes
        if nbytes <= cache:
            return 0
        if self.parts is None:
            return passes
        tasks = self.parts.count * _results(self.whole, self.parts.beside)
        return passes if nbytes / tasks * target.workers > cache else 1


def _shortest(c: Compute) -> Compute:
    """`c`, or the parts into which `split.py` may split it."""
    parts = straight(c) if c.out.size <= FEW else None
    return c if parts is None else partial(c, parts)


def _value(q: Compute) -> Expr:
    """The value that the squares `q` subtract from each term."""
    match q.body:
        case Binary("mul", Binary("sub", _, value), _):
            return value
        case _:
            raise AssertionError(q)


def _squares(body: Body, c: Compute) -> Compute | None:
    """The sum of the squared deviations of all terms of `c` from a value that is the same for all of them."""

    def matches(s: Statement) -> bool:
        if not isinstance(s, Compute) or s.combiner != "sum" or s.live:
            return False
        if (s.axes, s.reduce) != (c.axes, c.reduce):
            return False
        match s.body:
            case Binary("mul", Binary("sub", term, value) as a, b) if a == b and term == c.body:
                return axes_of(value).isdisjoint(s.reduce)
            case _:
                return False

    if c.combiner != "sum":
        return None
    return next((s for s in body if isinstance(s, Compute) and matches(s)), None)


def _split(body: Body, c: Compute, context: Context) -> Body:
    """`body` with `c` in the parts with which it is fastest, if any is faster than without."""
    squares = _squares(body, c)
    asked = (c,) if squares is None else (c, squares)
    ways = [_Way(c, squares), *(_Way(c, squares, p) for p in _candidates(c, context))]
    found = context.choose(
        "long",
        ways,
        shape=lambda: digest_statements(asked, context.tables),
        cost=lambda way: way.seconds(context),
        value=lambda way: way.value,
    )
    if found is None or found.parts is None:
        return body
    first, last = found.stages()
    instead = dict(zip(asked, last, strict=True))
    out: list[Statement] = []
    for s in body:
        out += first if s is c else ()
        out.append(instead[s] if isinstance(s, Compute) and s in asked else s)
    return tuple(out)


def _candidates(c: Compute, context: Context) -> Iterator[Parts]:
    """Pieces of each axis: about as many parts as there are workers, or a few times as many, or so many that each worker's part stays in
    the last-level cache; also with neighbours in memory kept apart."""
    target, kept = context.target, _neighbours(c)
    workers, nbytes = target.workers, _most(c).tensor.nbytes
    turns = (*TURNS, max(1.0, nbytes / (KEPT * target.l2_bytes)))
    lines = kept is not None and (not _few(c, target) or _short(c, kept))
    joined = not target.has.lockstep and kept is not None and _last(c, kept)
    for beside in (kept,) if kept is None or lines else (None, kept):
        results = _results(c, beside)
        for axis, a in enumerate(c.reduce):
            counts = [n for n in range(2, a.extent + 1) if a.extent % n == 0 and axis != beside]
            wanted = [t * workers / results for t in turns]
            near = {min(counts, key=lambda n: abs(math.log(n / w))) for w in wanted if counts}
            for count in sorted(near):
                if math.prod(x.extent for p, x in enumerate(c.reduce) if p != beside) > count:
                    yield Parts(axis, count, beside, beside is not None and joined)


def _results(c: Compute, beside: int | None) -> int:
    """Results that share no worker's part: where neighbours are kept, a worker has whole lines with all results that have positions in
    them."""
    if beside is None:
        return _apart(c)
    where = offset(_most(c))
    lines = (i for i in c.axes if where.coefficient(i) == c.reduce[beside].extent)
    return c.out.size // next(lines).extent


def _last(c: Compute, kept: int) -> bool:
    """Whether a result's neighbours in memory are next to those of the next result along the last axis."""
    return offset(_most(c)).coefficient(c.axes[-1]) == c.reduce[kept].extent


def _short(c: Compute, kept: int) -> bool:
    """Whether a result's neighbours in memory fill no more than a sector. 32 groups of 128 channels of 256 x 256 in float16: 33 us by
    pieces of 8 bytes, 6 by lines; of 256 channels 38 and 12 (H100)."""
    size = max(x.dtype.itemsize for x in loads(c.body))
    return c.reduce[kept].extent * size <= SECTOR


def _most(c: Compute) -> Load:
    """The largest tensor that it reads."""
    return max(loads(c.body), key=lambda x: x.tensor.size)


def _neighbours(c: Compute) -> int | None:
    """The reduction axis whose positions are neighbours in memory, if it is short and the results are neighbours of one another beyond
    it."""
    where = offset(_most(c))
    for p, a in enumerate(c.reduce):
        if 1 < a.extent <= MOST_BESIDE and where.coefficient(a) == 1:
            return p if any(where.coefficient(i) == a.extent for i in c.axes) else None
    return None
