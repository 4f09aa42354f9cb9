"""Rows held in registers: their division among lanes, the registers of a thread, and the cost."""

import math
from collections.abc import Iterable
from typing import Protocol

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis, Expr, Load, axes_of, loads, substitute
from monotile.kernels.common.cost import LINE, operations
from monotile.kernels.common.rowwise import Rowwise
from monotile.targets.model import fitted
from monotile.targets.target import Target

MOST_WORDS = 96  # registers of a thread for operands and held values
PART = 8  # largest bytes of a partial sum


class Lanes(Protocol):
    """How lanes share a row: `lanes` neighbouring threads have it, each with vectors of `vector` neighbours, `lanes` vectors apart."""

    @property
    def lanes(self) -> int: ...
    @property
    def vector(self) -> int: ...


class HoldsRows(Lanes, Protocol):
    """A method with rows in registers: the match (`rowwise.Rowwise`), and the pairs of sums that are computed in one pass (`moments.py`)."""

    @property
    def rows(self) -> int: ...
    @property
    def span(self) -> tuple[int, ...]: ...
    @property
    def order(self) -> tuple[str, ...]: ...
    @property
    def moments(self) -> tuple[tuple[str, str], ...]: ...


class RowWork(msgspec.Struct, frozen=True):
    """The work of a row, without names.

    length: its elements. operations: per element. sums: values that its lanes reduce; pairs: of these, those computed in one pass with
    another. read: bytes of an element of each operand, and whether rows differ in it. stored: bytes of an element of the result. size:
    words of a wide value.
    """

    length: int
    operations: float
    sums: int
    pairs: int
    read: tuple[tuple[int, bool], ...]
    stored: int
    size: int

    def turns(self, share: Lanes) -> int:
        """Vectors of a lane."""
        return turns(self.length, share)

    def words(self, share: Lanes, rounds: int) -> int:
        """Registers of a thread. With several rounds row operands are held twice: this round's and the next one's."""
        elements = self.turns(share) * share.vector
        read = sum(
            -(-elements * size // 4) * (2 if rounds > 1 and own else 1) for size, own in self.read
        )
        held = 2 * elements * self.size  # a wide value, and the one computed from it
        return read + held

    def arithmetic(self, share: Lanes, target: Target) -> float:
        """Seconds in which all threads of a worker compute one row for each group."""
        rate = target.flops["fma"] / 2 / target.workers / target.threads
        each = self.operations * share.vector + self.scattered(share, target)
        return self.turns(share) * each / rate

    def scattered(self, share: Lanes, target: Target) -> float:
        """Extra operations of a thread for the loads of a vector, beyond those of contiguous ones: rows of few lanes touch many lines."""
        lanes, vector = min(share.lanes, target.warp), share.vector
        total = 0.0
        for size in (*(size for size, own in self.read if own), self.stored):
            touched = target.warp // lanes * max(1.0, lanes * vector * size / LINE)
            total += touched / max(1.0, target.warp * vector * size / LINE) - 1
        return target.model.common.request * total

    def meeting(self, share: Lanes, target: Target) -> float:
        """Latencies of reducing the values of a row across its lanes."""
        pairs = self.pairs if even(self.length, share, target) else 0
        model = fitted(target.model.rowwise)
        each = model.reduction if share.lanes > target.warp else model.reduction / 2
        return (self.sums - pairs) * each

    def moved(self, rows: int, target: Target, *, own: bool = False) -> float:
        """Seconds to load the operands of `rows` rows; own: only those in which rows differ."""
        nbytes = sum(size for size, differs in self.read if differs or not own) * self.length
        return nbytes * rows / target.worker_bandwidth

    def further_round(self, share: Lanes, rows: int, target: Target) -> float:
        """Seconds of a round of `rows` rows whose operands were prefetched in the round before."""
        chain = fitted(target.model.rowwise).chain
        waits = target.latency_seconds * (chain + self.meeting(share, target))
        return max(self.moved(rows, target, own=True) + self.arithmetic(share, target), waits)


def row_work(
    found: Rowwise, pairs: int, transcendental: float, numbers: Iterable[Axis] | None = None
) -> RowWork:
    """The work of `found`. pairs: sums that may be computed in one pass with others. transcendental: operations that one such function
    counts for. numbers: those of the anchor's axes by which the rows of a task differ; None: all axes over rows."""
    rows = frozenset(found.anchor.axes[: found.rows] if numbers is None else numbers)
    return RowWork(
        math.prod(found.span),
        sum(operations(s, transcendental) for s in found.evaluated if found.along(s)),
        found.sums,
        pairs,
        tuple(
            (x.dtype.itemsize, any(rows & axes_of(i) for i in x.index)) for x in far_loads(found)
        ),
        found.anchor.out.dtype.itemsize,
        max(1, *(s.out.dtype.compute.itemsize // 4 for s in found.order if found.wide(s))),
    )


def turns(length: int, share: Lanes) -> int:
    """Vectors of a lane in a row of this length."""
    return -(-length // (share.vector * share.lanes))


def last_lanes(length: int, share: Lanes) -> int:
    """Lanes that have a vector in the last iteration."""
    return length // share.vector - (turns(length, share) - 1) * share.lanes


def even(length: int, share: Lanes, target: Target) -> bool:
    """Whether the lanes of a warp have equal parts of a row."""
    return last_lanes(length, share) % min(target.warp, share.lanes) == 0


def far_loads(found: Rowwise) -> tuple[Load, ...]:
    """The loads per element of a row from tensors that the step does not compute, without gathers: each once, at the anchor's axes."""
    own = {s.out.name for s in found.order}
    out = dict[Load, None]()
    for s in filter(found.along, found.evaluated):
        axes = zip((*s.axes[: found.rows], *found.along(s)), found.anchor.axes, strict=True)
        point: dict[str, Expr] = {a.name: b for a, b in axes}
        for x in loads_of(s):
            if x.tensor.name not in own and not any(loads(i) for i in x.index):
                out[Load(x.tensor, tuple(substitute(i, point) for i in x.index))] = None
    return tuple(out)
