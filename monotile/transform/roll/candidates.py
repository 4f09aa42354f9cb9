"""Chooses which repeated sequence of a statement list to roll."""

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from monotile.analysis.align import Alignment, Around, Carried, Local, align
from monotile.analysis.dependence import follows
from monotile.analysis.repeats import Repeat, repeats
from monotile.analysis.skeleton import Skeleton
from monotile.ir.expr import loads
from monotile.ir.program import Compute, Statement, defined, statements, used

MIN_SAVING = 3  # minimum number of statements that a Loop must save
LONG_CHAIN = 64  # length from which a chain without reductions is rolled instead of fused
ATTEMPTS = 64  # limit of repeats to try, best estimate first
ROTATIONS = 8  # limit of starts to try in one repeat
SHORT = 24  # statements of an iteration, up to which two are not rolled if a later statement can join the second


@dataclass(frozen=True, slots=True)
class Choice:
    """Runs of groups of `period` statements; group 0 begins at statement `start`."""

    start: int
    period: int
    alignments: tuple[Alignment, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """Facts about a statement. id: equal for equal skeleton keys. size: number of statements, including those of loop
    bodies. reads: names of the tensors in its skeleton's uses."""

    skeleton: Skeleton
    id: int
    size: int
    reads: frozenset[str]


def size(s: Statement) -> int:
    """Number of statements in `s`, including itself."""
    return sum(1 for _ in statements((s,)))


def is_heavy(s: Statement) -> bool:
    """Whether `s` is more than a pointwise Compute."""
    return not (isinstance(s, Compute) and s.combiner is None)


def best_choice(
    body: Sequence[Statement],
    x: Sequence[Fact],
    weights: frozenset[str],
    around: Around | None = None,
    *,
    shortest: bool = False,
) -> Choice | None:
    """The choice in `body` that saves most statements, or None if none saves `MIN_SAVING`. x: facts of the statements.

    shortest: instead the one with the shortest period, which rolls inner loops before outer ones.
    """
    ahead = np.concatenate(([0], np.cumsum([f.size for f in x])))

    def limit(r: Repeat) -> int:
        """Upper bound of the saving of rolling `r`."""
        return int(ahead[r.start + r.matches] - ahead[r.start])

    found = [(limit(r), r) for r in repeats([f.id for f in x])]
    found = [(spared, r) for spared, r in found if spared >= MIN_SAVING]
    if shortest:
        found.sort(key=lambda f: (ahead[f[1].start + f[1].period] - ahead[f[1].start], -f[0]))
    else:
        found.sort(key=lambda f: (-f[0], f[1].period, f[1].start))
    best: Choice | None = None
    best_saving = MIN_SAVING - 1
    for spared, r in found[:ATTEMPTS]:
        if spared <= best_saving:
            break
        choice, saving = _best_rotation(body, x, r, weights, around)
        if choice is not None and saving > best_saving:
            if shortest:
                return choice
            best, best_saving = choice, saving
    return best


def _best_rotation(
    body: Sequence[Statement],
    x: Sequence[Fact],
    r: Repeat,
    weights: frozenset[str],
    around: Around | None,
) -> tuple[Choice | None, int]:
    length = r.matches + r.period
    crossing = _crossing(x, r)
    offsets = [o for o in range(r.period) if (length - o) // r.period >= 2]
    offsets.sort(key=lambda o: (-((length - o) // r.period), crossing[o], -o))
    best: Choice | None = None
    best_score = (0, 0)
    for offset in offsets[:ROTATIONS]:
        start = r.start + offset
        count = (length - offset) // r.period
        groups = [
            [f.skeleton for f in x[k : k + r.period]]
            for k in range(start, start + count * r.period, r.period)
        ]
        group = body[start : start + r.period]
        per_group = sum(f.size for f in x[start : start + r.period])
        kept = [
            a
            for a in align(groups, weights, around)
            if (a.count - 1) * per_group >= MIN_SAVING
            and _is_chain(group, groups[0], a)
            and not _is_joined(body, start + a.first * r.period, r.period, per_group, a)
        ]
        saving = sum((a.count - 1) * per_group for a in kept)
        score = (saving, -sum(_carried(a) for a in kept))
        if kept and score > best_score:
            best, best_score = Choice(start, r.period, tuple(kept)), score
        if saving == (count - 1) * per_group:
            break  # all of it; later offsets have no fewer crossing tensors
    return best, best_score[0]


def _is_joined(
    body: Sequence[Statement], start: int, period: int, per_group: int, a: Alignment
) -> bool:
    """Whether there are only two short iterations, and the next statement reads the result of the second element by element: the sum of
    a residual block. After a loop, that statement would be a separate pass over memory, with a hand-off."""
    if a.count != 2 or per_group > SHORT:
        return False
    second, end = start + period, start + 2 * period
    made = {t.name for s in body[second:end] for t in defined(s)}
    later = {t.name for s in body[end:] for t in defined(s)}
    for s in body[end:]:
        if isinstance(s, Compute) and s.combiner is None:
            crossing = [x for x in loads(s.body) if x.tensor.name in made]
            if crossing and follows(s, crossing) and not later & {t.name for t in used(s)}:
                return True
    return False


def _carried(a: Alignment) -> int:
    """Number of values that each iteration passes to the next."""
    return len({c.position for c in a.slots if isinstance(c, Carried)})


def _crossing(x: Sequence[Fact], r: Repeat) -> list[int]:
    """Number of tensors that cross the boundary between two periods, by offset of the boundary."""
    first = r.start + (r.count // 2 - 1) * r.period if r.count > 2 else r.start
    last = min(first + 3 * r.period, r.start + r.matches + r.period)
    at: dict[str, int] = {}
    until: dict[str, int] = {}
    for k in range(first, last):
        for t in x[k].skeleton.uses:
            if t.name in at:
                until[t.name] = k
        for t in x[k].skeleton.definitions:
            at[t.name] = k
    out = [0] * r.period
    for name, end in until.items():
        if at[name] < first + r.period:
            for boundary in range(at[name] + 1, min(end, at[name] + r.period) + 1):
                out[(boundary - r.start) % r.period] += 1
    return out


def _is_chain(group: Sequence[Statement], parts: Sequence[Skeleton], a: Alignment) -> bool:
    """Whether the iterations are sequential anyway: half of the heavy statements depend on the previous iteration. (Other
    repeats are better fused horizontally.)"""
    slots = iter(a.slots)
    slots_of = [[next(slots) for _ in part.uses] for part in parts]
    carried = {c.position for c in a.slots if isinstance(c, Carried)}
    waiting = _waiting(parts, slots_of, carried)
    while ended := {p for p in carried if not waiting[p]}:  # made anew in each iteration
        carried -= ended
        waiting = _waiting(parts, slots_of, carried)
    first = itertools.accumulate((len(part.definitions) for part in parts), initial=0)
    waits = [waiting[k] for k, s in zip(first, group, strict=False) if is_heavy(s)]
    if not waits:
        return any(waiting) and a.count * len(group) >= LONG_CHAIN
    return 2 * sum(waits) >= len(waits)


def _waiting(
    parts: Sequence[Skeleton], slots: Sequence[Sequence[object]], carried: Container[int]
) -> list[bool]:
    """For each definition of an iteration, whether it depends on one of those that the iteration before `carried` to it."""
    waiting: list[bool] = []
    for part, of in zip(parts, slots, strict=True):
        outside = len(waiting)  # definitions of the statements before
        waits = any(
            (isinstance(c, Carried) and c.position in carried)
            or (isinstance(c, Local) and c.position < outside and waiting[c.position])
            for c in of
        )
        waiting += [waits] * len(part.definitions)
    return waiting
