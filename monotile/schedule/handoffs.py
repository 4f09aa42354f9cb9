"""Placement of tasks on workers and the hand-off each stage waits for (Rammer's rTasks, on virtual workers).

Stages that do not depend on each other since the last grid barrier stand side by side on different workers.
The body of a loop is walked for iterations 0, 1, 2 and the last, with the bytes that each really touches:
carried values alternate between two places, so this covers every pair of neighbours. Loops with messages have their
hand-offs already; before them and after them they are like one stage.
"""

import math
from types import MappingProxyType

import msgspec

from monotile.ir.program import Compute, Scatter
from monotile.plan.access import Bytes, Old, access, on_chip, overlap, worker_of
from monotile.plan.hazards import touches
from monotile.plan.nodes import Handoff, Place, PlanNode, Repeat, Stage

_STRENGTH: dict[Handoff, int] = {"none": 0, "block": 1, "grid": 2}


def synchronise(
    body: tuple[PlanNode, ...],
    statements: dict[str, Compute | Scatter],
    places: dict[str, tuple[Place, ...]],
    workers: int,
    old: Old = MappingProxyType({}),
) -> tuple[PlanNode, ...]:
    """`body` with every stage's `first` worker and `handoff` filled in."""
    walker = _Walker(statements, places, workers, old)
    walker.walk(body, {})
    return walker.finish(body)


class _Walker:
    def __init__(
        self,
        statements: dict[str, Compute | Scatter],
        places: dict[str, tuple[Place, ...]],
        workers: int,
        old: Old,
    ) -> None:
        self.statements, self.places, self.workers, self.old = statements, places, workers, old
        self.decided: dict[str, Stage] = {}
        self.reads: list[tuple[Bytes, int | None]] = []  # since the last grid barrier, and by whom
        self.writes: list[tuple[Bytes, int | None]] = []
        self.entered: dict[str, Handoff] = {}  # of loops with messages, by axis
        self.next_worker = 0
        self.chip_used = False  # since the last barrier of any kind

    def walk(self, nodes: tuple[PlanNode, ...], iterations: dict[str, int]) -> None:
        for node in nodes:
            match node:
                case Stage():
                    self._stage(node, iterations)
                case Repeat() if node.messages:
                    self._enter(node, nested=bool(iterations))
                    for i in _replayed(node.extent):
                        self._hand_on(node, {**iterations, node.axis: i})
                case Repeat(axis, extent, body):
                    for i in _replayed(extent):
                        self.walk(body, {**iterations, axis: i})

    def _enter(self, loop: Repeat, *, nested: bool) -> None:
        """A loop with messages: whoever may still use its memory, or its messages of the time before, comes first."""
        if nested or self.reads or self.writes:
            self.entered[loop.axis] = "grid"
            self.reads, self.writes = [], []
        self.next_worker, self.chip_used = 0, True

    def _hand_on(self, loop: Repeat, iterations: dict[str, int]) -> None:
        """An iteration of a loop with messages, whose hand-offs are known: what it leaves for others to wait for."""
        for stage in loop.body:
            assert isinstance(stage, Stage)
            me = worker_of(stage, self.workers)
            found = touches(stage, loop, self.statements, self.places, iterations, self.old)
            self.reads += [(t.where, me) for t in found.reads]
            self.writes += [(t.where, me) for t in found.writes]
            self.decided[stage.name] = stage

    def _stage(self, stage: Stage, iterations: dict[str, int]) -> None:
        touched = access(stage, self.statements, self.places, iterations, self.old)
        against = [w for _, b in touched.reads for w in self._conflicts(b, self.writes)]
        for _, b in touched.writes:
            against += self._conflicts(b, self.writes) + self._conflicts(b, self.reads)
        known = self.decided.get(stage.name)
        if known is None:
            known = msgspec.structs.replace(stage, first=self._first(stage, against))
        me = worker_of(known, self.workers)
        chip = on_chip(known, self.places)
        handoff: Handoff = "none"
        if against:
            handoff = "block" if me is not None and set(against) == {me} else "grid"
        elif chip and self.chip_used:
            handoff = "block"
        if _STRENGTH[handoff] < _STRENGTH[known.handoff]:
            handoff = known.handoff
        self.decided[stage.name] = msgspec.structs.replace(known, handoff=handoff)
        if handoff == "grid":
            self.reads, self.writes, self.next_worker = [], [], 0
        if handoff != "none":
            self.chip_used = False
        self.chip_used |= chip
        self.next_worker = (known.first + math.prod(known.grid)) % self.workers
        self.reads += [(b, me) for _, b in touched.reads]
        self.writes += [(b, me) for _, b in touched.writes]

    def _first(self, stage: Stage, against: list[int | None]) -> int:
        """Right after the tasks before it; a single task goes where what it waits for was made."""
        makers = set(against)
        if math.prod(stage.grid) == 1 and len(makers) == 1 and (only := makers.pop()) is not None:
            return only
        return 0 if against else self.next_worker

    @staticmethod
    def _conflicts(b: Bytes, pending: list[tuple[Bytes, int | None]]) -> list[int | None]:
        return [worker for other, worker in pending if overlap(b, other)]

    def finish(self, nodes: tuple[PlanNode, ...]) -> tuple[PlanNode, ...]:
        out: list[PlanNode] = []
        for node in nodes:
            match node:
                case Stage(name):
                    out.append(self.decided[name])
                case Repeat(axis, _, body):
                    entry = self.entered.get(axis, node.handoff)
                    made = msgspec.structs.replace(node, body=self.finish(body), handoff=entry)
                    out.append(made)
        return tuple(out)


def _replayed(extent: int) -> list[int]:
    return sorted({0, 1, 2, extent - 1} & set(range(extent)))
