"""Several outputs of a segmented reduction at once per thread: how many along each dim of a step.

A thread that computes one output after the other waits three times for each: for the ends, for the indices of the terms, and for the
elements at these indices. With several at once it waits once for all. Along a dim that the ends do not depend on, such as the columns of a
row, they are loaded once.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from monotile.analysis.affine import constant_run, offset
from monotile.analysis.ends import SegmentEnds, segment_ends, share_of_terms
from monotile.ir.expr import Expr, Load, loads, walk
from monotile.ir.intervals import interval
from monotile.ir.program import Compute, value_of
from monotile.kernels.common.cost import LINE, distinct_loads
from monotile.kernels.reduction.method import Reduce
from monotile.plan.nodes import Dim
from monotile.targets.model import fitted
from monotile.targets.target import Target

MOST_SLOTS = 8  # vectors of outputs that a thread has at once
MOST_TURNS = 8  # terms of each that it loads at once
MOST_WORDS = 120  # registers for sums, for loads in flight, and for the epilogue
# Cycles of all threads of a worker for: clamping an index; an address; converting a lane's term and adding it under a condition.
LOOK_UP, PLACE, LANE = 16, 8, 6
SPREAD = 0.5  # of the last iteration, which is unused on average


@dataclass(frozen=True, slots=True)
class Slots:
    """counts: vectors of outputs that a thread has at once along each dim. extents: vectors of a whole tile along each. rows: the dims
    along which ends differ."""

    counts: tuple[int, ...]
    extents: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def items(self) -> tuple[int, ...]:
        """Threads along each dim, which is also the distance between the vectors of a thread."""
        return tuple(-(-n // by) for n, by in zip(self.extents, self.counts, strict=True))

    @property
    def columns(self) -> tuple[int, ...]:
        """The dims along which ends are the same."""
        return tuple(k for k in range(len(self.counts)) if k not in self.rows)

    def several(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Those of `dims` along which a thread has several vectors."""
        return tuple(k for k in dims if self.counts[k] > 1)

    def count(self, dims: Sequence[int]) -> int:
        """A thread's vectors along `dims` together."""
        return math.prod(self.counts[k] for k in dims)


def slots_of(anchor: Compute, dims: Sequence[Dim], width: int, counts: tuple[int, ...]) -> Slots:
    """The slots of a step with vectors of `width` outputs."""
    ends = segment_ends(anchor)
    differ = ends.axes if ends is not None else frozenset()
    sizes = [d.extent if d.stage is None else d.tile + d.lead for d in dims]
    extents = (*sizes[:-1], sizes[-1] // width)
    rows = tuple(k for k, d in enumerate(dims) if {anchor.axes[p] for p in d.axes} & differ)
    return Slots(counts, extents, rows)


def why_not_several(anchor: Compute) -> str:
    """Why a thread computes one output after the other; "" if it may have several at once."""
    ends = segment_ends(anchor)
    if ends is None:
        return "its outputs have no ends of their own"
    return "" if _in_range(ends.body) else "what its terms look up has to be checked"


def _in_range(body: Expr) -> bool:
    """Whether all indices that `body` loads are in range whatever the data is: a check would be a branch between loads."""
    looked_up = (
        (i, extent)
        for x in loads(body)
        for i, extent in zip(x.index, x.tensor.shape, strict=True)
        if loads(i)
    )
    spans = ((interval(i), extent) for i, extent in looked_up)
    return all(span is not None and span.inside(0, extent - 1) for span, extent in spans)


def cheapest(
    anchor: Compute,
    followers: Sequence[Compute],
    dims: Sequence[Dim],
    method: Reduce,
    target: Target,
) -> tuple[Reduce, float]:
    """`method` with the numbers of outputs and terms at once that cost least, for a segmented reduction with one thread per output; and
    about how many cycles a task then takes."""
    ends = segment_ends(anchor)
    assert ends is not None
    work = _Work.of(anchor, followers, ends, method.outputs)
    most = min(MOST_TURNS, anchor.reduce[0].extent)
    best, least = method, math.inf
    one = slots_of(anchor, dims, method.outputs, (1,) * len(dims))
    for counts in _counts(one.extents):
        slots = slots_of(anchor, dims, method.outputs, counts)
        for turns in (n for n in (1, 2, 4, 8) if n <= most):
            cost = work.cycles(slots, turns, target)
            if cost < least:
                best, least = method.several(counts, turns), cost
    return best, least


def cycles_of_lanes(anchor: Compute, outputs: int, lanes: int, turns: int, target: Target) -> float:
    """About how many cycles a task takes whose outputs have `lanes` threads each, with `turns` terms of a thread at once."""
    ends = segment_ends(anchor)
    assert ends is not None
    work = _Work.of(anchor, (), ends, 1)
    rounds = -(-outputs * lanes // target.threads)
    steps = max(1.0, work.terms / (lanes * turns) + SPREAD)
    return rounds * (1 + steps * work.depth) * fitted(target.model.reduction).trip


def _counts(extents: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Candidate numbers of vectors: powers of two along each dim, the smallest product first."""
    each = [[n for n in (1, 2, 4, 8) if n <= max(1, extent)] for extent in extents]
    found = (x for x in itertools.product(*each) if math.prod(x) <= MOST_SLOTS)
    yield from sorted(found, key=math.prod)


@dataclass(frozen=True, slots=True)
class _Work:
    """terms: of an output, on average. depth: the length of a term's chain of dependent loads. shared: registers for the indices that all
    columns of a row share. found, after: bytes per vector of outputs of each load of a term, and of each load of the epilogue. sums:
    registers of a vector's sums. stored: bytes of its result."""

    terms: float
    depth: int
    shared: int
    found: tuple[int, ...]
    after: tuple[int, ...]
    sums: int
    stored: int

    @staticmethod
    def of(anchor: Compute, followers: Sequence[Compute], ends: SegmentEnds, width: int) -> "_Work":
        inner = {y for x in loads(ends.body) for i in x.index for y in loads(i)}
        found = [x for x in distinct_loads(ends.body) if x not in inner]
        made = {anchor.out, *(s.out for s in followers)}
        after = {x for s in followers for x in loads(value_of(s)) if x.tensor not in made}

        def nbytes(every: Iterable[Load]) -> tuple[int, ...]:
            return tuple(x.dtype.itemsize * _elements(x, anchor, width) for x in every)

        return _Work(
            math.prod(a.extent for a in anchor.reduce) * share_of_terms(anchor),
            max(map(_depth, found), default=0),
            sum(map(_words, nbytes(inner))),
            nbytes(found),
            nbytes(after),
            width * _words(anchor.body.dtype.compute.itemsize),
            width * anchor.out.dtype.itemsize,
        )

    def cycles(self, slots: Slots, turns: int, target: Target) -> float:
        """About how many cycles a task takes if a thread has `turns` terms of each of its outputs at once."""
        model, every = fitted(target.model.reduction), range(len(slots.counts))
        rows, several = slots.count(slots.rows), slots.count(every)
        looked_up, found = (
            turns * rows * self.shared,
            turns * several * sum(map(_words, self.found)),
        )
        held = several * (self.sums + sum(map(_words, self.after))) + max(looked_up, found)
        if several * turns > 1 and held > MOST_WORDS:
            return math.inf
        rounds = -(-math.prod(slots.items) // target.threads)
        beside = math.prod(slots.items[k] for k in slots.columns)
        together = rows * max(
            1.0, target.warp / beside
        )  # rows of a warp, which ends with the longest
        longest = self.terms + math.sqrt(2 * self.terms * math.log(together))
        steps = max(1.0, longest / turns + SPREAD)
        near = slots.items[-1] if slots.items else 1

        def lines(every: Sequence[int]) -> float:
            return sum(max(_words(n), _lines(n, near, target)) for n in every)

        loaded = steps * (looked_up + turns * several * lines(self.found))
        loaded += several * lines((*self.after, self.stored))
        work = steps * turns * (rows * LOOK_UP + several * (PLACE + LANE * self.sums))
        trips = 1 + steps * self.depth
        return rounds * (trips * model.trip + loaded * model.word + work)


def _words(nbytes: int) -> int:
    return -(-nbytes // 4)


def _lines(nbytes: int, near: int, target: Target) -> float:
    """About how many cache lines a warp's load of `nbytes` per thread touches, if those of `near` threads are contiguous."""
    runs = max(1.0, target.warp / near)
    return runs * (1 + target.warp * nbytes / runs / LINE) if nbytes > 4 else 1.0


def _elements(x: Load, s: Compute, width: int) -> int:
    """How many elements of `x` a vector of `width` outputs reads."""
    return width if s.axes and constant_run(offset(x), s.axes[-1], width) < width else 1


def _depth(e: Expr) -> int:
    """The length of the chain of dependent loads in `e`."""
    inner = [_depth(i) for x in walk(e) if isinstance(x, Load) for i in x.index if loads(i)]
    return max(inner, default=0) + 1 if loads(e) else 0
