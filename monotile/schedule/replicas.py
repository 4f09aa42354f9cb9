"""What is small and read by streamed products is made by every worker for itself, on chip: a barrier of the block in place of the grid's,
and no vector to fetch from the last-level cache. A normalisation of one row is such a stage, or what combines the parts of an attention.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from monotile.ir.program import Compute, Loop, Program, Scatter, is_snapshot, statements, used
from monotile.plan.nodes import PlanNode, Stage, Step
from monotile.plan.places import Place, Register, Replica, Workspace
from monotile.plan.streams import streams
from monotile.plan.walk import stages_in, with_bodies
from monotile.targets.target import Target

MOST = 1 << 14  # bytes of a stage's results
ALIGN = 128
Statements = Mapping[str, Compute | Scatter]
Places = dict[str, tuple[Place, ...]]


def replicate(
    body: tuple[PlanNode, ...],
    program: Program,
    computes: Statements,
    places: Places,
    on_chip: int,
    target: Target,
) -> tuple[tuple[PlanNode, ...], Places, int]:
    """`body` with such stages run everywhere, where their results lie then, and the on-chip bytes of a worker."""
    if not any(streams(step) for stage in stages_in(body) for step in stage.steps):
        return body, places, on_chip
    found = _Replicas(program, computes, places, target)
    nodes = found.nodes(body, -(-on_chip // ALIGN) * ALIGN)
    return nodes, found.places, max(on_chip, found.end)


class _Replicas:
    """end: of the bytes on chip that all results get."""

    def __init__(
        self, program: Program, computes: Statements, places: Places, target: Target
    ) -> None:
        self.computes, self.places, self.end = computes, {**places}, 0
        self.target = target
        self.handed = {t.name for t in program.outputs}
        # A snapshot has one value, whoever reads it.
        self.handed |= {n for n, s in computes.items() if is_snapshot(s, program.changing)}
        for s in statements(program.body):
            if not isinstance(s, (Compute, Scatter)):
                self.handed |= {t.name for t in used(s)}
            if isinstance(s, Loop):
                self.handed |= {c.result.name for c in s.carried} | {
                    k.value.name for k in s.stacked
                }

    def nodes(self, body: Sequence[PlanNode], at: int) -> tuple[PlanNode, ...]:
        """at: the byte on chip from which on results may lie: behind those of the bodies around."""
        out: list[PlanNode] = []
        taken: list[tuple[int, int, int]] = []  # until which node, from which byte, to which
        for number, node in enumerate(body):
            busy = [t for t in taken if t[0] >= number]
            if not isinstance(node, Stage):
                behind = max([at, *(high for _, _, high in busy)])
                out.append(with_bodies(node, lambda inner, at=behind: self.nodes(inner, at)))
                continue
            whole = self._as_one_task(node)
            names = self._results(whole)
            sizes = [-(-self.computes[n].out.nbytes // ALIGN) * ALIGN for n in names]
            if not names or sum(sizes) > MOST or not self._wanted(names, body[number + 1 :], body):
                out.append(node)
                continue
            low = _room(busy, at, sum(sizes))
            taken.append((self._last_reader(names, body), low, low + sum(sizes)))
            self.end = max(self.end, low + sum(sizes))
            for name, size in zip(names, sizes, strict=True):
                self.places[name] = (Replica(low),)
                low += size
            out.append(msgspec.structs.replace(whole, everywhere=True))
        return tuple(out)

    def _last_reader(self, names: Sequence[str], body: Sequence[PlanNode]) -> int:
        """The number of the last node that reads one of `names`."""
        steps = ((k, s) for k, n in enumerate(body) for stage in stages_in((n,)) for s in stage.steps)  # fmt: skip
        return max(k for k, step in steps if self._reads(step, names))

    def _reads(self, step: Step, names: Sequence[str]) -> bool:
        return any(t.name in names for n in step.computes for t in used(self.computes[n]))

    def _as_one_task(self, stage: Stage) -> Stage:
        """A stage of single elements as one task, if all that it reads comes to each worker in less time than the hand-off takes; else as it is."""
        if len(stage.steps) != 1 or stage.steps[0].bounds or stage.steps[0].scratch_bytes:
            return stage
        (step,) = stage.steps
        made = [self.computes[n] for n in step.computes]
        single = all(isinstance(s, Compute) and s.combiner is None for s in made)
        read = {t.name: t.nbytes for s in made for t in used(s)}
        seconds = sum(read.values()) * self.target.workers / self.target.l2_bandwidth
        if not single or not step.method.light or seconds > self.target.barrier_seconds:
            return stage
        dims = tuple(msgspec.structs.replace(d, tile=d.extent) for d in step.dims)
        if any(d.lead for d in dims):
            return stage
        steps = (msgspec.structs.replace(step, dims=dims),)
        return msgspec.structs.replace(stage, grid=tuple(1 for _ in stage.grid), steps=steps)

    def _results(self, stage: Stage) -> list[str]:
        """What the one task of a stage stores, if that is nothing but results in the workspace; else nothing."""
        names = [n for step in stage.steps for n in step.computes]
        stored = [n for n in names if not all(isinstance(p, Register) for p in self.places[n])]
        plain = all(
            isinstance(self.computes[n], Compute)
            and n not in self.handed
            and all(isinstance(p, Workspace) for p in self.places[n])
            for n in stored
        )
        whole = math.prod(stage.grid) == 1 and not any(map(streams, stage.steps))
        return stored if whole and plain else []

    def _wanted(
        self, names: Sequence[str], later: Sequence[PlanNode], body: Sequence[PlanNode]
    ) -> bool:
        """Whether streamed products of later stages read the results, and nobody else does."""
        readers = 0
        for stage in stages_in(tuple(body)):
            for step in stage.steps:
                if not self._reads(step, names):
                    continue
                if {n for s in stage.steps for n in s.computes} & set(names):
                    continue  # the stage itself
                if not streams(step) or stage not in later:
                    return False
                readers += 1
        return readers > 0


def _room(busy: Sequence[tuple[int, int, int]], at: int, size: int) -> int:
    """The first byte from `at` on behind which so many are free."""
    for _, low, high in sorted(busy, key=lambda t: t[1]):
        if at + size <= low:
            break
        at = max(at, high)
    return at
