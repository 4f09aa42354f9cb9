"""Weights that stay on chip through a loop: a recurrence reads them from memory once, not in every step."""

import math
from collections.abc import Mapping

import msgspec

from monotile.analysis.unconditional import unconditional
from monotile.ir.expr import Axis, Load, axes_of, loads
from monotile.ir.program import Compute, Scatter
from monotile.plan.nodes import (
    Dim,
    HoldRows,
    Map,
    PlanNode,
    Reduce,
    Repeat,
    Resident,
    Stage,
    Step,
)
from monotile.targets.target import Target

ALIGN = 128
OWN_REGISTERS = 96  # that a thread needs for all else
FEWEST = 4  # iterations that repay the copy


def distinct_loads(c: Compute) -> tuple[Load, ...]:
    """The Loads of a body, each once, in order."""
    return tuple(dict.fromkeys(loads(c.body)))


def rows_of(x: Load, c: Compute, dims: tuple[Dim, ...]) -> tuple[int, ...]:
    """The positions of the dims that `x` depends on."""
    used = frozenset[Axis]().union(*(axes_of(i) for i in x.index))
    return tuple(k for k, d in enumerate(dims) if any(c.axes[p] in used for p in d.axes))


def multiplied(c: Compute, weights: frozenset[str]) -> tuple[Load, ...]:
    """What a reduction reads of `weights`: another element for each point of the reduction, in any case, found without a lookup."""
    always = set(unconditional(c.body))
    return tuple(
        x
        for x in distinct_loads(c)
        if x in always
        and x.tensor.name in weights
        and not any(loads(i) for i in x.index)
        and set(c.reduce) <= frozenset[Axis]().union(*map(axes_of, x.index))
    )


def task_bytes(x: Load, c: Compute, dims: tuple[Dim, ...]) -> int:
    """What a task reads of it."""
    points = math.prod(a.extent for a in c.reduce)
    return math.prod(dims[k].tile for k in rows_of(x, c, dims)) * points * x.dtype.itemsize


def keep(
    body: tuple[PlanNode, ...],
    computes: Mapping[str, Compute | Scatter],
    weights: frozenset[str],
    shared_bytes: int,
    target: Target,
    workers: int,
) -> tuple[tuple[PlanNode, ...], int]:
    """`body` with what is kept, and the on-chip bytes of a worker; outer loops first, as long as there is room.

    shared_bytes: what the stages use, from 0 on.
    """
    if not target.has.scratchpad:
        return body, shared_bytes
    found = _Keeper(computes, weights, target.shared_bytes, workers)
    nodes = found.nodes(body, shared_bytes, frozenset())
    return nodes, max(found.most, shared_bytes)


def kept_bytes(body: tuple[PlanNode, ...]) -> int:
    """All that the loops keep."""
    loops = [n for n in body if isinstance(n, Repeat)]
    return sum(kept_bytes(n.body) + sum(r.nbytes for r in n.resident) for n in loops)


def hold(
    body: tuple[PlanNode, ...], target: Target, room: int | None = None
) -> tuple[PlanNode, ...]:
    """`body` with what is kept held in registers where these suffice; outer loops first.

    room: registers of a thread. A loop with products or attention needs them itself.
    """
    left = target.registers // target.threads - OWN_REGISTERS if room is None else room
    out: list[PlanNode] = []
    for node in body:
        if not isinstance(node, Repeat):
            out.append(node)
            continue
        steps = {s.computes[0]: s for _, s in _steps(node.body)}
        light = all(isinstance(s.method, (Map, Reduce, HoldRows)) for s in steps.values())
        free = left if light else 0
        residents: list[Resident] = []
        for r in node.resident:
            method, words = steps[r.compute].method, -(-r.nbytes // (4 * target.threads))
            held = isinstance(method, Reduce) and method.vector > 1 and words <= free
            free -= words if held else 0
            residents.append(msgspec.structs.replace(r, held=held))
        inner = hold(node.body, target, free)
        out.append(msgspec.structs.replace(node, body=inner, resident=tuple(residents)))
    return tuple(out)


class _Keeper:
    def __init__(
        self,
        computes: Mapping[str, Compute | Scatter],
        weights: frozenset[str],
        room: int,
        workers: int,
    ) -> None:
        self.computes, self.weights, self.room, self.workers = computes, weights, room, workers
        self.most = 0

    def nodes(
        self, body: tuple[PlanNode, ...], used: int, kept: frozenset[tuple[str, int]]
    ) -> tuple[PlanNode, ...]:
        return tuple(self._node(n, used, kept) for n in body)

    def _node(self, node: PlanNode, used: int, kept: frozenset[tuple[str, int]]) -> PlanNode:
        match node:
            case Stage():
                return node
            case Repeat():
                held: list[Resident] = []
                if node.extent >= FEWEST:
                    inner = frozenset(_axes(node))
                    for stage, step in _steps(node.body):
                        for number, nbytes in self._candidates(stage, step, inner):
                            key = (step.computes[0], number)
                            if key in kept or used + nbytes > self.room:
                                continue
                            held.append(Resident(stage.name, *key, used, nbytes))
                            kept |= {key}
                            used += -(-nbytes // ALIGN) * ALIGN
                            self.most = max(self.most, held[-1].offset + nbytes)
                return msgspec.structs.replace(
                    node, body=self.nodes(node.body, used, kept), resident=tuple(held)
                )

    def _candidates(self, stage: Stage, step: Step, inner: frozenset[str]) -> list[tuple[int, int]]:
        """Loads that are the same in every iteration, and the bytes that a task reads of them."""
        anchor = self.computes[step.computes[0]]
        if (
            not isinstance(step.method, Reduce)
            or step.method.outputs > 1
            or not isinstance(anchor, Compute)
        ):
            return []
        if math.prod(stage.grid) > self.workers:
            return []
        return [
            (distinct_loads(anchor).index(x), task_bytes(x, anchor, step.dims))
            for x in multiplied(anchor, self.weights)
            if not any(a.name in inner for i in x.index for a in axes_of(i))
        ]


def _axes(node: Repeat) -> list[str]:
    """The axis of the loop and of those inside it."""
    out = [node.axis]
    for n in node.body:
        if isinstance(n, Repeat):
            out += _axes(n)
    return out


def _steps(body: tuple[PlanNode, ...]) -> list[tuple[Stage, Step]]:
    out: list[tuple[Stage, Step]] = []
    for node in body:
        match node:
            case Stage():
                out += [(node, step) for step in node.steps]
            case Repeat():
                out += _steps(node.body)
    return out
