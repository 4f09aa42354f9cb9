"""Pins weights on chip through a loop, so that a recurrence reads them from memory once and not in every iteration."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from monotile.ir.expr import axes_of
from monotile.ir.program import Compute, Scatter
from monotile.kernels.family import Pinnable
from monotile.kernels.registry import family_of
from monotile.plan.access import chip_end, received_bytes, workers_of
from monotile.plan.nodes import Choose, PlanNode, Repeat, Resident, Stage, Step
from monotile.plan.places import Place
from monotile.plan.walk import repeats, stages_in, with_bodies
from monotile.targets.target import Target

ALIGN = 128
OWN_REGISTERS = 96  # that a thread needs for everything else
FEWEST = 4  # iterations that amortise the copy


def keep(
    body: tuple[PlanNode, ...],
    computes: Mapping[str, Compute | Scatter],
    places: Mapping[str, tuple[Place, ...]],
    weights: frozenset[str],
    base: int,
    target: Target,
    workers: int,
) -> tuple[tuple[PlanNode, ...], int]:
    """`body` with pinned weights, and the end of their on-chip memory. Outer loops come first, as long as there is room. Weights that no
    worker has both of may share bytes, also with on-chip memory of stages outside of the loop.

    base: bytes from 0 that are not free in any loop.
    """
    if not target.has.scratchpad:
        return body, 0
    found = _Keeper(computes, places, weights, target, workers)
    nodes = found.nodes(body, (_Taken(frozenset(range(workers)), base),), frozenset())
    return nodes, found.most


def kept_bytes(body: tuple[PlanNode, ...]) -> int:
    """Bytes that all loops pin."""
    return sum(r.nbytes for loop in repeats(body) for r in loop.resident)


def hold(
    body: tuple[PlanNode, ...],
    computes: Mapping[str, Compute | Scatter],
    weights: frozenset[str],
    target: Target,
    room: int | None = None,
) -> tuple[PlanNode, ...]:
    """`body` with pinned weights held in registers where there are enough of them; outer loops first.

    room: registers of a thread. A loop with products or attention needs them itself; loops inside it that have none do not.
    """
    left = target.registers // target.threads - OWN_REGISTERS if room is None else room
    out: list[PlanNode] = []
    for node in body:
        if isinstance(node, Stage):
            out.append(node)
            continue
        if isinstance(node, Choose):
            sides = (hold(b, computes, weights, target, left) for b in node.bodies)
            out.append(msgspec.structs.replace(node, bodies=tuple(sides)))
            continue
        steps = {s.computes[0]: s for _, s in _steps(node.body)}
        light = all(s.method.light for s in steps.values())
        rest, residents = left, list[Resident]()
        for r in node.resident:
            found = family_of(steps[r.compute].method).pinnable(
                steps[r.compute], computes, weights, target
            )
            beside = r.place in {x.place for x in residents if x.held}
            words = 0 if beside else -(-r.nbytes // (4 * target.threads))
            able = light and any(p.number == r.load and p.in_registers for p in found)
            held = able and words <= rest
            rest -= words if held else 0
            residents.append(msgspec.structs.replace(r, held=held))
        inner = hold(node.body, computes, weights, target, rest)
        out.append(msgspec.structs.replace(node, body=inner, resident=tuple(residents)))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class _Taken:
    """The end of the on-chip memory in use by these workers."""

    workers: frozenset[int]
    end: int


class _Keeper:
    def __init__(
        self,
        computes: Mapping[str, Compute | Scatter],
        places: Mapping[str, tuple[Place, ...]],
        weights: frozenset[str],
        target: Target,
        workers: int,
    ) -> None:
        self.computes, self.places, self.weights, self.target = computes, places, weights, target
        self.room, self.workers = target.shared_bytes, workers
        self.most = 0

    def nodes(
        self,
        body: tuple[PlanNode, ...],
        used: tuple[_Taken, ...],
        kept: frozenset[tuple[str, int]],
    ) -> tuple[PlanNode, ...]:
        return tuple(self._node(n, used, kept) for n in body)

    def _node(
        self, node: PlanNode, used: tuple[_Taken, ...], kept: frozenset[tuple[str, int]]
    ) -> PlanNode:
        match node:
            case Stage():
                return node
            case Choose():
                return with_bodies(node, lambda body: self.nodes(body, used, kept))
            case Repeat():
                held: list[Resident] = []
                taken = list(self._used(node))
                if node.extent >= FEWEST:
                    inner = frozenset(loop.axis for loop in repeats((node,)))
                    for stage, step in _steps(node.body):
                        mine = workers_of(stage, self.workers)
                        for p in self._candidates(stage, step, inner):
                            key = (step.computes[0], p.number)
                            at = max(t.end for t in (*used, *taken) if t.workers & mine)
                            if key in kept or at + p.nbytes > self.room:
                                continue
                            held.append(Resident(stage.name, *key, at, p.nbytes, vector=p.vector))
                            kept |= {key}
                            used = (*used, _Taken(mine, at + -(-p.nbytes // ALIGN) * ALIGN))
                            self.most = max(self.most, at + p.nbytes)
                return msgspec.structs.replace(
                    node, body=self.nodes(node.body, used, kept), resident=tuple(held)
                )

    def _used(self, loop: Repeat) -> Iterator[_Taken]:
        """The on-chip memory that the loop's stages use for themselves and for received messages."""
        for stage in stages_in(loop.body):
            received = (high for _, _, high in received_bytes(stage, (loop,), self.computes))
            end = max(chip_end(stage, self.computes, self.places), *received, 0)
            yield _Taken(workers_of(stage, self.workers), -(-end // ALIGN) * ALIGN)

    def _candidates(self, stage: Stage, step: Step, inner: frozenset[str]) -> list[Pinnable]:
        """Weights of which a worker reads the same part in every iteration."""
        if math.prod(stage.grid) > self.workers:
            return []
        return [
            p
            for p in family_of(step.method).pinnable(step, self.computes, self.weights, self.target)
            if not any(a.name in inner for i in p.load.index for a in axes_of(i))
        ]


def _steps(body: tuple[PlanNode, ...]) -> list[tuple[Stage, Step]]:
    return [(stage, step) for stage in stages_in(body) for step in stage.steps]
