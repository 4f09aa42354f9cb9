"""Checks on-chip memory that outlives a stage: the ring of streamed weights, pinned weights, and tensors that every worker has for
itself."""

import math
from collections.abc import Iterator, Mapping

from monotile.ir.program import Compute, Scatter
from monotile.plan.access import Span, chip_results
from monotile.plan.invalid import fail
from monotile.plan.nodes import Plan, Stage
from monotile.plan.places import Place, Register, Replica, Rotate, Shared, replicas_in
from monotile.plan.walk import repeats, stages_in
from monotile.targets.target import Target

Statements = Mapping[str, Compute | Scatter]


def check_on_chip(plan: Plan, computes: Statements, target: Target) -> None:
    """Raises VerificationError where two of these share bytes, or a stage uses their bytes for itself."""
    _check_ring(plan, target)
    _check_replicas(plan, computes)
    ring, own = _ring(plan, target), list(_replicas(plan, computes))
    kept = [(f"a weight that {r.compute} keeps on chip", r.offset, r.offset + r.nbytes) for loop in repeats(plan.body) for r in loop.resident]  # fmt: skip
    for what, low, high in (*ring, *own):
        if high > plan.launch.shared_bytes:
            fail(f"{what} ends at {high}, on-chip memory at {plan.launch.shared_bytes}")
        for other, low2, high2 in kept + (ring if (what, low, high) in own else []):
            if low < high2 and low2 < high:
                fail(f"{what} and {other} share on-chip memory")
    for stage in stages_in(plan.body):
        for what, low, high in (*ring, *own):
            for _, low2, high2 in _used(stage, plan, computes):
                if low < high2 and low2 < high:
                    fail(f"{stage.name} uses on-chip memory of {what}")


def _check_ring(plan: Plan, target: Target) -> None:
    """Checks that steps that stream have a ring whose slots hold their chunks."""
    ring = plan.launch.ring
    steps = [step for stage in stages_in(plan.body) for step in stage.steps]
    most = max((step.method.slot_bytes for step in steps), default=0)
    if ring is None:
        if most:
            fail("weights are streamed, and there is no ring")
        return
    least = max((step.method.slots_at_once for step in steps), default=0)
    if min(ring.offset, ring.slots - least, ring.under_way - 1) < 0 or ring.offset % ring.ALIGN or ring.slot_bytes % ring.ALIGN:  # fmt: skip
        fail(
            f"a ring of {ring.slots} slots of {ring.slot_bytes} bytes at {ring.offset}, {ring.under_way} under way"
        )
    if most > ring.slot_bytes:
        fail(f"{most} bytes do not fit a slot of {ring.slot_bytes}")
    group = ring.threads == ring.GROUP and "setmaxnreg" in target.instructions
    if ring.threads != ring.THREADS and not group:
        fail(f"a ring is not supplied by {ring.threads} threads")
    if not target.has.scratchpad:
        fail("the target has no on-chip memory for a ring")


def _check_replicas(plan: Plan, computes: Statements) -> None:
    """Checks that a stage run everywhere writes per-worker places, and only such a stage does: any other result would be computed
    several times."""
    for stage in stages_in(plan.body):
        names = [n for step in stage.steps for n in step.computes if n in computes]
        places = [p for n in names for p in plan.places.get(n, ())]
        if stage.everywhere and math.prod(stage.grid) != 1:
            fail(f"{stage.name} runs everywhere and has several tasks")
        if stage.everywhere and not all(map(_is_own, places)):
            fail(f"{stage.name} runs everywhere and writes what is not each worker's own")
        if not stage.everywhere and any(map(replicas_in, places)):
            fail(f"{stage.name} does not run everywhere and makes what every worker has for itself")
        if stage.everywhere and any(isinstance(computes[n], Scatter) for n in names):
            fail(f"{stage.name} runs everywhere and updates a tensor")


def _is_own(p: Place) -> bool:
    """Whether a worker that writes there writes to memory of its own."""
    if isinstance(p, Rotate):
        return all(isinstance(q, Replica) for q in (*p.places, p.first, p.last) if q is not None)
    return isinstance(p, (Replica, Register, Shared))


def _ring(plan: Plan, target: Target) -> list[Span]:
    ring = plan.launch.ring
    if ring is None:
        return []
    nbytes = ring.nbytes(plan.launch.threads // target.warp)
    return [("the ring", ring.offset, ring.offset + nbytes)]


def _replicas(plan: Plan, computes: Statements) -> Iterator[Span]:
    for name, places in plan.places.items():
        for r in (r for p in places for r in replicas_in(p)):
            if name in computes:
                yield name, r.offset, r.offset + computes[name].out.nbytes


def _used(stage: Stage, plan: Plan, computes: Statements) -> Iterator[Span]:
    """On-chip bytes that a stage uses for itself alone."""
    for step in stage.steps:
        if step.scratch_bytes:
            yield step.computes[0], step.scratch, step.scratch + step.scratch_bytes
    yield from chip_results(stage, computes, plan.places)
