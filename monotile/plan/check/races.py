"""Race detection: replays the Plan's memory accesses without its arithmetic, and what each hand-off orders."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monotile.analysis.dependence import updates_own
from monotile.analysis.in_place import carried_in_place
from monotile.analysis.states import old_values, overwritten_by
from monotile.ir.program import Compute, Loop, Program, Scatter, statements, updates, used
from monotile.plan.access import (
    REPLICA,
    WORKSPACE,
    Bytes,
    access,
    looked_at,
    overlap,
    overwritten,
    replayed,
    resolve,
    resolve_look,
    worker_of,
)
from monotile.plan.check.values import Holds, Owners
from monotile.plan.hazards import Touch, brought_to, touches
from monotile.plan.invalid import fail
from monotile.plan.nodes import Choose, Handoff, Plan, PlanNode, Repeat, Stage


def replay(plan: Plan, program: Program, computes: dict[str, Compute | Scatter]) -> None:
    """Raises VerificationError where a stage may access bytes that another stage is not done with."""
    _Replay(plan, program, computes).run()


@dataclass(slots=True)
class _Done:
    """reads, writes: accesses since the last grid barrier, with the worker (None: several). written: bytes that have a value. lost: old
    values, of states and of loop carries in place, whose memory has the new value. holds: the tensor whose value the bytes have."""

    reads: list[tuple[Bytes, int | None]]
    writes: list[tuple[Bytes, int | None]]
    written: list[Bytes]
    lost: set[str]
    holds: Holds

    def copy(self) -> "_Done":
        return _Done([*self.reads], [*self.writes], [*self.written], {*self.lost}, [*self.holds])

    @staticmethod
    def any_of(ways: "Sequence[_Done]") -> "_Done":
        """The state after one of several control-flow paths: only bytes that all of them wrote have a value."""
        first, *others = ways
        return _Done(
            list(dict.fromkeys(x for w in ways for x in w.reads)),
            list(dict.fromkeys(x for w in ways for x in w.writes)),
            [b for b in first.written if all(b in w.written for w in others)],
            set[str]().union(*(w.lost for w in ways)),
            list(dict.fromkeys(x for w in ways for x in w.holds)),
        )


class _Replay:
    """Replays the Plan's stages in order and tracks their effects."""

    def __init__(
        self, plan: Plan, program: Program, computes: dict[str, Compute | Scatter]
    ) -> None:
        self.plan, self.computes = plan, computes
        self.now = _Done([], [], [], set(), [])
        self.owners = Owners(program, plan.places)
        self.loop_reads: list[
            Touch
        ] = []  # reads since the current loop with messages began, and its writes
        self.loop_writes: list[Touch] = []
        for t in (*program.inputs, *(w.tensor for w in program.weights)):
            for place in plan.places[t.name]:
                self.now.written.extend(resolve(place, t.nbytes, {}))
        self.own = {
            WORKSPACE: plan.launch.workspace_bytes,
            REPLICA: plan.launch.shared_bytes,
        }  # writable memory, and its size
        for k, t in enumerate(program.results):
            self.own[f"pointer {len(plan.inputs) + k}"] = t.nbytes
        self.old = overwritten(program)
        for t in (t for u in updates(program) for t in (u.result, *u.old)):
            for place in plan.places[t.name]:
                for space, _, end, *_ in resolve(place, t.nbytes, {}):
                    self.own[space] = max(end, self.own.get(space, 0))
        self.writers = overwritten_by(program)
        loops = (s for s in statements(program.body) if isinstance(s, Loop))
        self.carried = {s.axis.name: {c.param.name for c in carried_in_place(s)} for s in loops}
        self.kept = old_values(program)  # `may_share` has checked these

    def run(self) -> None:
        self._walk(self.plan.body, {})

    def _walk(self, nodes: tuple[PlanNode, ...], iterations: dict[str, int]) -> None:
        for node in nodes:
            match node:
                case Stage():
                    self._stage(node, iterations)
                case Repeat() if node.only_messages:
                    self.now.holds = self.owners.entered(self.now.holds, node.axis)
                    self._enter(node, iterations)
                    for i in replayed(node):
                        self.now.lost -= self.carried[node.axis]
                        for stage in node.body:
                            assert isinstance(stage, Stage)
                            self._handed(node, stage, {**iterations, node.axis: i})
                        self._turned(node, i)
                case Repeat():
                    self._repeat(node, iterations)
                case Choose(index, bodies):
                    self._look(f"the choice by {index}", node, iterations, node.handoff)
                    before, ends = self.now, list[_Done]()
                    for body in bodies:
                        self.now = before.copy()
                        self._walk(body, iterations)
                        ends.append(self.now)
                    self.now = _Done.any_of(ends)

    def _repeat(self, loop: Repeat, iterations: dict[str, int]) -> None:
        what, ends = f"the loop over {loop.axis}", list[_Done]()
        self.now.holds = self.owners.entered(self.now.holds, loop.axis)
        if loop.messages:
            self._enter(loop, iterations)
        if loop.count:
            self._look(what, loop, iterations, loop.handoff)
        for i in replayed(loop):
            here = {**iterations, loop.axis: i}
            if loop.predicate:
                self._look(what, loop, here, loop.again if i else loop.handoff)
            ends.append(self.now.copy())
            self.now.lost -= self.carried[loop.axis]
            for node in loop.body:
                if isinstance(node, Stage):
                    self._stage(node, here, brought_to(node, loop, here))
                else:
                    self._walk((node,), here)
            self._turned(loop, i)
        if loop.predicate:
            last = {**iterations, loop.axis: len(replayed(loop))}
            self._look(what, loop, last, loop.again)
        if loop.ends_early:
            # The last iteration's writes are read at the place of the loop's `out`.
            written = self.now.written
            self.now = _Done.any_of([*ends, self.now])
            self.now.written = written

    def _turned(self, loop: Repeat, iteration: int) -> None:
        last = iteration == replayed(loop)[-1]
        self.now.holds = self.owners.turned(self.now.holds, loop.axis, last=last)

    def _look(
        self, what: str, node: Repeat | Choose, iterations: dict[str, int], handoff: Handoff
    ) -> None:
        """All workers read the scalar that decides, and each has to read the same value."""
        name, _ = looked_at(node)
        self._pass(handoff)
        for b in resolve_look(node, self.plan.places, iterations):
            if any(overlap(b, other) for other, _ in self.now.writes):
                fail(f"{what} looks at {name} without waiting for whoever wrote it")
            if not any(overlap(b, w) for w in self.now.written):
                fail(f"{what} looks at {name} before anything wrote it")
            self.now.reads.append((b, None))
            if (other := self.owners.stranger(self.now.holds, name, b)) is not None:
                fail(f"{what} looks at {name} where {other} was written since")
        if name in self.now.lost:
            fail(f"{what} looks at {name} when its memory has the new value")

    def _pass(self, handoff: Handoff) -> None:
        """A hand-off: all workers are done, or each worker with its own memory."""
        if handoff == "grid":
            self.now.reads, self.now.writes = [], []
        if handoff == "block":
            self.now.reads = [x for x in self.now.reads if x[0][0] != REPLICA]
            self.now.writes = [x for x in self.now.writes if x[0][0] != REPLICA]

    def _enter(self, loop: Repeat, iterations: dict[str, int]) -> None:
        """Before a loop with messages, all workers are done with its memory, and with the messages of its previous run."""
        if loop.handoff == "grid":
            self.now.reads, self.now.writes = [], []
        if self.now.reads or self.now.writes or (iterations and loop.handoff != "grid"):
            fail(f"the loop over {loop.axis} begins without waiting for what was before it")
        self.loop_reads, self.loop_writes = [], []

    def _handed(self, loop: Repeat, stage: Stage, iterations: dict[str, int]) -> None:
        """A stage that waits for messages alone: all its other accesses have to be to its worker's own bytes."""
        found = touches(stage, loop, self.computes, self.plan.places, iterations, self.old)
        for t in found.writes:
            self._check_own(stage, t.name, t.where)
        for t in found.reads:
            self._check_read(stage, t.name, t.where, [w.where for w in found.writes])
        for mine, others in (
            (found.reads, self.loop_writes),
            (found.writes, [*self.loop_reads, *self.loop_writes, *found.reads]),
        ):
            for t in mine:
                for other in others:
                    if t.clashes(other):
                        fail(
                            f"{stage.name} uses {t.name} while a task of another worker may still use"
                            f" {other.name}, which lies in the same place"
                        )
        self.loop_reads += found.reads
        self.loop_writes += found.writes
        me = worker_of(stage, self.plan.launch.workers)
        self.now.reads += [(t.where, me) for t in found.reads]
        self._wrote(stage, [(t.name, t.where) for t in found.writes], me)

    def _stage(
        self,
        stage: Stage,
        iterations: dict[str, int],
        brought: frozenset[str] = frozenset(),
    ) -> None:
        """brought: the tensors that messages bring to the stage."""
        places = self.plan.places
        touched = access(stage, self.computes, places, iterations, self.old, brought)
        me = worker_of(stage, self.plan.launch.workers)
        self._pass(stage.handoff)
        for name, b in touched.writes:
            self._check_own(stage, name, b)
        for name, b in touched.reads:
            self._clash(stage, name, b, self.now.writes, me, "reads")
            self._check_read(stage, name, b, [w for _, w in touched.writes])
        for name, b in touched.writes:
            if isinstance(self.computes[name], Scatter) and not any(
                overlap(b, w) for w in self.now.written
            ):
                fail(f"{stage.name} updates {name} before anything wrote it")
            self._clash(stage, name, b, self.now.writes, me, "writes")
            self._clash(stage, name, b, self.now.reads, me, "writes")
        self.now.reads += [(b, me) for _, b in touched.reads]
        self._wrote(stage, touched.writes, me)

    def _check_own(self, stage: Stage, name: str, b: Bytes) -> None:
        space, _, end, *_ = b
        if space not in self.own:
            fail(f"{stage.name} writes {name} to {space}, which is not its own")
        if end > self.own[space]:
            fail(f"{name} reaches past the {self.own[space]} bytes of {space}")

    def _check_read(self, stage: Stage, name: str, b: Bytes, writes: list[Bytes]) -> None:
        """writes: of the same stage."""
        if not any(overlap(b, w) for w in self.now.written):
            fail(f"{stage.name} reads {name} before anything wrote it")
        if (other := self.owners.stranger(self.now.holds, name, b)) is not None:
            fail(f"{stage.name} reads {name} where {other} was written since")
        if name in self.now.lost:
            fail(f"{stage.name} reads {name} when its memory has the new value")
        several = math.prod(stage.grid) > 1 and not self._updates_own(stage, name)
        if several and name not in self.kept and any(overlap(b, w) for w in writes):
            fail(f"{stage.name} writes over {name} while it reads it")

    def _updates_own(self, stage: Stage, name: str) -> bool:
        """Whether the stage overwrites of tensor `name` only elements whose new value it makes of them, in the same task."""
        own = [self.computes[n] for step in stage.steps for n in step.computes]
        updates = [s for s in own if isinstance(s, Scatter) and s.base.name == name]
        readers = [s for s in own if s not in updates and name in {t.name for t in used(s)}]
        return len(updates) == 1 and all(updates_own(s, updates[0]) for s in readers)

    def _wrote(self, stage: Stage, writes: Iterable[tuple[str, Bytes]], me: int | None) -> None:
        writes = tuple(writes)
        found = [b for _, b in writes]
        for name, b in writes:
            self.now.holds = self.owners.written(self.now.holds, name, b)
        self.now.writes += [(b, me) for b in found]
        self.now.written += [b for b in found if b not in self.now.written]
        for name in (n for step in stage.steps for n in step.computes):
            self.now.lost |= self.writers.get(name, frozenset())

    def _clash(
        self,
        stage: Stage,
        name: str,
        b: Bytes,
        pending: list[tuple[Bytes, int | None]],
        me: int | None,
        verb: str,
    ) -> None:
        for other, worker in pending:
            if overlap(b, other) and not (
                stage.handoff == "block" and worker is not None and worker == me
            ):
                fail(
                    f"{stage.name} {verb} {name} without waiting for the stage that used it before"
                )
