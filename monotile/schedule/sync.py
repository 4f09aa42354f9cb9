"""Placement of tasks on workers and the hand-off each stage waits for (Rammer's rTasks, on virtual workers).

Stages that do not depend on each other since the last grid barrier stand side by side on different workers.
The body of a loop is walked for iterations 0, 1, 2 and the last, with the bytes that each really touches:
carried values alternate between two places, so this covers every pair of neighbours.
"""

import math
from types import MappingProxyType

import msgspec

from monotile.ir.program import Compute, Scatter
from monotile.schedule.plan import Handoff, Place, PlanNode, Repeat, Stage
from monotile.schedule.ranges import Bytes, Old, access, on_chip, overlap, worker_of

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
        self.next_worker = 0
        self.chip_used = False  # since the last barrier of any kind

    def walk(self, nodes: tuple[PlanNode, ...], iterations: dict[str, int]) -> None:
        for node in nodes:
            match node:
                case Stage():
                    self._stage(node, iterations)
                case Repeat(axis, extent, body):
                    for i in sorted({0, 1, 2, extent - 1} & set(range(extent))):
                        self.walk(body, {**iterations, axis: i})

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
                case Repeat(axis, extent, body):
                    out.append(Repeat(axis, extent, self.finish(body)))
        return tuple(out)
