"""Assigns tasks to workers and gives each stage the hand-off that it waits for (Rammer's rTasks, on virtual workers).

Stages that do not depend on each other since the last grid barrier run side by side on different workers. The body of a loop is
simulated for iterations 0, 1, 2 and the last, with the bytes that each iteration touches: carried values alternate between two buffers,
so these four cover every pair of neighbouring iterations. Loops with messages have their hand-offs already, and are treated like one
stage by what comes before and after. After a loop that may end early, the next stage waits for what is pending at any of its exits;
after a Choose, for what is pending at the end of any of its bodies. All workers read the scalar that decides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from monotile.ir.program import Compute, Scatter, is_snapshot
from monotile.plan.access import (
    REPLICA,
    Access,
    Bytes,
    Old,
    access,
    on_chip,
    overlap,
    replayed,
    resolve_look,
    worker_of,
)
from monotile.plan.hazards import brought_to, touches
from monotile.plan.nodes import Choose, Handoff, PlanNode, Repeat, Stage
from monotile.plan.places import Place
from monotile.plan.streams import streams
from monotile.plan.walk import with_bodies

_STRENGTH: dict[Handoff, int] = {"none": 0, "block": 1, "grid": 2}


def synchronise(
    body: tuple[PlanNode, ...],
    statements: dict[str, Compute | Scatter],
    places: dict[str, tuple[Place, ...]],
    workers: int,
    old: Old = MappingProxyType({}),
    changing: frozenset[str] = frozenset(),
) -> tuple[PlanNode, ...]:
    """`body` with every stage's `first` worker and `handoff` filled in. changing: inputs in host memory, which are copied to snapshots
    on the last worker, so that all other stages have the same workers as without them."""
    walker = _Walker(statements, places, workers, old)
    walker.aside = frozenset(n for n, s in statements.items() if is_snapshot(s, changing))
    walker.walk(body, {})
    return walker.finish(body)


@dataclass(slots=True)
class _Pending:
    """Accesses since the last grid barrier: reads, writes, and the worker of each (None: several workers). next_worker: the first idle
    worker. chip_used: on-chip bytes used since the last barrier of any kind."""

    reads: list[tuple[Bytes, int | None]]
    writes: list[tuple[Bytes, int | None]]
    next_worker: int = 0
    chip_used: bool = False

    def copy(self) -> "_Pending":
        return replace(self, reads=[*self.reads], writes=[*self.writes])

    @staticmethod
    def any_of(ways: "Sequence[_Pending]") -> "_Pending":
        """The union of the pending accesses of several control-flow paths."""
        return _Pending(
            list(dict.fromkeys(x for w in ways for x in w.reads)),
            list(dict.fromkeys(x for w in ways for x in w.writes)),
            ways[0].next_worker if len({w.next_worker for w in ways}) == 1 else 0,
            any(w.chip_used for w in ways),
        )

    def passed_block(self) -> None:
        self.chip_used = False
        self.reads = [x for x in self.reads if x[0][0] != REPLICA]
        self.writes = [x for x in self.writes if x[0][0] != REPLICA]

    def passed_grid(self) -> None:
        self.reads, self.writes, self.next_worker, self.chip_used = [], [], 0, False


class _Walker:
    def __init__(
        self,
        statements: dict[str, Compute | Scatter],
        places: dict[str, tuple[Place, ...]],
        workers: int,
        old: Old,
    ) -> None:
        self.statements, self.places, self.workers, self.old = statements, places, workers, old
        self.aside: frozenset[str] = frozenset()  # what the last worker computes
        self.decided: dict[str, Stage] = {}
        self.now = _Pending([], [])
        self.entered: dict[str, Handoff] = {}  # of loops with messages, by axis
        self.looks: dict[
            tuple[int, bool], Handoff
        ] = {}  # before a scalar decides, by the node's identity; of a loop also: again

    def walk(self, nodes: tuple[PlanNode, ...], iterations: dict[str, int]) -> None:
        for node in nodes:
            match node:
                case Stage():
                    self._stage(node, iterations)
                case Repeat() if node.only_messages:
                    self._enter(node, nested=bool(iterations))
                    for i in replayed(node):
                        self._hand_on(node, {**iterations, node.axis: i})
                case Repeat():
                    self._repeat(node, iterations)
                case Choose(_, bodies):
                    self._look(node, iterations)
                    before, ends = self.now, list[_Pending]()
                    for body in bodies:
                        self.now = before.copy()
                        self.walk(body, iterations)
                        ends.append(self.now)
                    self.now = _Pending.any_of(ends)

    def _repeat(self, loop: Repeat, iterations: dict[str, int]) -> None:
        if loop.messages:
            self._enter(loop, nested=bool(iterations))
        if loop.count:
            self._look(loop, iterations)
        ends: list[_Pending] = []
        for i in replayed(loop):
            here = {**iterations, loop.axis: i}
            if loop.predicate:
                self._look(loop, here, again=i > 0)
            ends.append(self.now.copy())
            for node in loop.body:
                if isinstance(node, Stage):
                    self._stage(node, here, brought_to(node, loop, here))
                else:
                    self.walk((node,), here)
        if loop.predicate:
            self._look(loop, {**iterations, loop.axis: len(replayed(loop))}, again=True)
        if loop.ends_early:
            self.now = _Pending.any_of([*ends, self.now])

    def _look(
        self, node: Repeat | Choose, iterations: dict[str, int], *, again: bool = False
    ) -> None:
        """All workers read the scalar that decides a loop or branch."""
        place = (id(node), again)
        found = resolve_look(node, self.places, iterations)
        against = [w for b in found for w in self._conflicts(b, self.now.writes)]
        own = self._waits_for_itself(Access(tuple(("", b) for b in found), ()))
        handoff: Handoff = "grid" if against else "block" if own else "none"
        if _STRENGTH[handoff] < _STRENGTH[known := self.looks.get(place, "none")]:
            handoff = known
        self.looks[place] = handoff
        if handoff == "grid":
            self.now.passed_grid()
        if handoff != "none":
            self.now.passed_block()
        self.now.reads += [(b, None) for b in found]

    def _enter(self, loop: Repeat, *, nested: bool) -> None:
        """Enters a loop with messages, after waiting for all that may still use its memory or the messages of the previous run of the
        loop."""
        if nested or self.now.reads or self.now.writes:
            self.entered[loop.axis] = "grid"
            self.now.passed_grid()
        self.now.next_worker, self.now.chip_used = 0, True

    def _hand_on(self, loop: Repeat, iterations: dict[str, int]) -> None:
        """Accesses that an iteration of a loop with messages, whose hand-offs are fixed, leaves pending for later stages."""
        for stage in loop.body:
            assert isinstance(stage, Stage)
            me = worker_of(stage, self.workers)
            found = touches(stage, loop, self.statements, self.places, iterations, self.old)
            self.now.reads += [(t.where, me) for t in found.reads]
            self.now.writes += [(t.where, me) for t in found.writes]
            self.decided[stage.name] = stage

    def _stage(
        self,
        stage: Stage,
        iterations: dict[str, int],
        brought: frozenset[str] = frozenset(),
    ) -> None:
        """brought: the tensors that messages bring to the stage."""
        touched = access(stage, self.statements, self.places, iterations, self.old, brought)
        near = self._waits_for_itself(touched)
        against = [w for _, b in touched.reads for w in self._conflicts(b, self.now.writes)]
        for _, b in touched.writes:
            against += self._conflicts(b, self.now.writes) + self._conflicts(b, self.now.reads)
        known = self.decided.get(stage.name)
        if known is None:
            known = msgspec.structs.replace(stage, first=self._first(stage, against))
        me = worker_of(known, self.workers)
        chip = on_chip(known, self.places)
        handoff: Handoff = "none"
        if against:
            handoff = "block" if me is not None and set(against) == {me} else "grid"
        elif near or brought or (chip and self.now.chip_used):
            handoff = "block"
        if _STRENGTH[handoff] < _STRENGTH[known.handoff]:
            handoff = known.handoff
        self.decided[stage.name] = msgspec.structs.replace(known, handoff=handoff)
        if handoff == "grid":
            self.now.passed_grid()
        if handoff != "none":
            self.now.passed_block()
        self.now.chip_used |= chip
        if not self._is_aside(stage):
            self.now.next_worker = (known.first + math.prod(known.grid)) % self.workers
        self.now.reads += [(b, me) for _, b in touched.reads]
        self.now.writes += [(b, me) for _, b in touched.writes]

    def _first(self, stage: Stage, against: list[int | None]) -> int:
        """The stage's first worker: the one after the tasks before it. A single task runs where its dependences were computed. A stage
        that streams weights begins with worker 0, since it has about one task for every worker."""
        if any(map(streams, stage.steps)):
            return 0
        if self._is_aside(stage):
            return self.workers - 1
        makers = set(against)
        if math.prod(stage.grid) == 1 and len(makers) == 1 and (only := makers.pop()) is not None:
            return only
        return 0 if against else self.now.next_worker

    def _is_aside(self, stage: Stage) -> bool:
        return not self.aside.isdisjoint(stage.steps[0].computes)

    def _waits_for_itself(self, touched: Access) -> bool:
        """Whether the threads of a worker have to finish using the worker's own on-chip tensors first."""
        reads, writes = (
            [b for _, b in x if b[0] == REPLICA] for x in (touched.reads, touched.writes)
        )
        pending = [
            *((b, self.now.writes) for b in reads),
            *((b, self.now.reads + self.now.writes) for b in writes),
        ]
        return any(overlap(b, other) for b, before in pending for other, _ in before)

    @staticmethod
    def _conflicts(b: Bytes, pending: list[tuple[Bytes, int | None]]) -> list[int | None]:
        """The pending accesses to the same bytes that have to finish first, apart from tensors that each worker has for itself."""
        if b[0] == REPLICA:
            return []
        return [worker for other, worker in pending if overlap(b, other)]

    def finish(self, nodes: tuple[PlanNode, ...]) -> tuple[PlanNode, ...]:
        out: list[PlanNode] = []
        for node in nodes:
            match node:
                case Stage(name):
                    out.append(self.decided[name])
                case Repeat() | Choose():
                    handoff = self.looks.get((id(node), False), node.handoff)
                    made = with_bodies(node, self.finish)
                    if isinstance(made, Repeat):
                        handoff = self.entered.get(made.axis, handoff)
                        again = self.looks.get((id(node), True), made.again)
                        made = msgspec.structs.replace(made, again=again)
                    out.append(msgspec.structs.replace(made, handoff=handoff))
        return tuple(out)
