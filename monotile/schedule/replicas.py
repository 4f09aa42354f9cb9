"""What is small and read by streamed products is made by every worker for itself, on chip: a barrier of the block in place of the grid's,
and no vector to fetch from the last-level cache. A normalisation of one row is such a stage.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from monotile.ir.program import Compute, Loop, Program, Scatter, is_snapshot, statements, used
from monotile.plan.nodes import PlanNode, Stage
from monotile.plan.places import Place, Register, Replica, Workspace
from monotile.plan.streams import streams
from monotile.plan.walk import stages_in, with_bodies

MOST = 1 << 14  # bytes of a stage's results
ALIGN = 128
Statements = Mapping[str, Compute | Scatter]
Places = dict[str, tuple[Place, ...]]


def replicate(
    body: tuple[PlanNode, ...], program: Program, computes: Statements, places: Places, on_chip: int
) -> tuple[tuple[PlanNode, ...], Places, int]:
    """`body` with such stages run everywhere, where their results lie then, and the on-chip bytes of a worker."""
    if not any(streams(step) for stage in stages_in(body) for step in stage.steps):
        return body, places, on_chip
    found = _Replicas(program, computes, places)
    nodes = found.nodes(body, -(-on_chip // ALIGN) * ALIGN)
    return nodes, found.places, max(on_chip, found.end)


class _Replicas:
    """end: of the bytes on chip that all results get."""

    def __init__(self, program: Program, computes: Statements, places: Places) -> None:
        self.computes, self.places, self.end = computes, {**places}, 0
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
        for number, node in enumerate(body):
            if not isinstance(node, Stage):
                out.append(with_bodies(node, lambda inner, at=at: self.nodes(inner, at)))
                continue
            names = self._results(node)
            sizes = [-(-self.computes[n].out.nbytes // ALIGN) * ALIGN for n in names]
            if not names or sum(sizes) > MOST or not self._wanted(names, body[number + 1 :], body):
                out.append(node)
                continue
            for name, size in zip(names, sizes, strict=True):
                self.places[name] = (Replica(at),)
                at += size
            self.end = max(self.end, at)
            out.append(msgspec.structs.replace(node, everywhere=True))
        return tuple(out)

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
                if not any(t.name in names for n in step.computes for t in used(self.computes[n])):
                    continue
                if {n for s in stage.steps for n in s.computes} & set(names):
                    continue  # the stage itself
                if not streams(step) or stage not in later:
                    return False
                readers += 1
        return readers > 0
