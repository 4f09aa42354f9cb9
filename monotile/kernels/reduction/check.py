"""Checks that a reduction step is valid."""

import math

from monotile.analysis.ends import segment_ends
from monotile.codegen.lines import Lines
from monotile.ir.program import Compute
from monotile.kernels.common.vectors import exact_width
from monotile.kernels.family import Checked, Statements
from monotile.kernels.reduction.cuts import MOST_PARTS
from monotile.kernels.reduction.form import form_of
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.kernels.reduction.one_pass import why_not_one_pass
from monotile.kernels.reduction.prefetch import pinnable
from monotile.kernels.reduction.simd import why_not
from monotile.kernels.reduction.slots import MOST_SLOTS, why_not_several
from monotile.kernels.reduction.weights import held_early, weights_of
from monotile.plan.invalid import fail
from monotile.plan.nodes import Dim, Stage
from monotile.targets.target import Target


def check(c: Checked) -> None:
    """Fails unless lanes, outputs and windows divide the task's outputs and terms evenly, and the step's prefetches and pinned weights are
    possible."""
    stage, step, anchor, target = c.stage, c.step, c.anchor, c.target
    r = step.method
    assert isinstance(r, Reduce)
    if not isinstance(anchor, Compute):
        fail(f"{stage.name}: {anchor.out.name} is neither reduced nor a product")
    if r.lanes > target.threads or r.lanes & (r.lanes - 1):
        fail(f"{stage.name}: {r.lanes} lanes")
    if min(r.vector, r.outputs, r.windows, r.together, r.runs, r.unroll) < 1:
        fail(f"{stage.name}: a thread takes none of {anchor.out.name} at once")
    order = r.order or tuple(range(len(anchor.reduce)))
    if sorted(order) != list(range(len(anchor.reduce))):
        fail(f"{stage.name}: the order {r.order} of what {anchor.out.name} sums over")
    if isinstance(r, ReduceMoments) and (why := why_not_one_pass(step, c.statements)):
        fail(f"{stage.name}: {anchor.out.name} and its squares cannot be found in one pass: {why}")
    if target.has.lockstep:
        why = "loops are for threads by themselves" if r.simd else _at_once(c, r)
    elif isinstance(r, ReduceMoments):
        why = "its lanes are threads of a block"
    else:
        why = why_not(anchor, r, c.view.site(step), Lines(c.view))
    if why:
        fail(f"{stage.name}: {anchor.out.name} cannot be reduced so: {why}")
    if r.side_by_side and not _side_by_side(r, target):
        fail(f"{stage.name}: a thread cannot have {r.outputs} outputs of {anchor.out.name} so")
    if r.windows > 1 and not _whole_windows(r, step.dims):
        fail(f"{stage.name}: threads do not have {r.windows} windows of {anchor.out.name} each")
    if r.ahead("stage") and not weights_of(step, c.statements, c.steady):
        fail(f"{stage.name} has no weights to prefetch")
    if r.ahead("stage") and not held_early(step, c.view, c.steady, target):
        fail(f"{stage.name}: its threads cannot have the weights of {anchor.out.name} in registers")
    own = [r for r in c.view.residents if r.compute == anchor.out.name]
    found = {x.number: x for x in pinnable(step, c.statements, c.steady, target)} if own else {}
    for kept in own:
        x = found.get(kept.load)
        if x is None or kept.vector < 1 or x.vector % kept.vector:
            fail(f"{stage.name} cannot keep load {kept.load} of {anchor.out.name} on chip, {kept.vector} elements at once")  # fmt: skip
        elif kept.held and not x.in_registers:
            fail(
                f"{stage.name}: its threads cannot keep a weight of {anchor.out.name} in registers"
            )


def _at_once(c: Checked, r: Reduce) -> str:
    """Why a lane, or a group of lanes, cannot have so many outputs, vectors or rows at once; "" if it can."""
    anchor = c.anchor
    assert isinstance(anchor, Compute)
    if (ends := segment_ends(anchor)) is not None:
        alike = r.outputs == 1 or anchor.axes[-1] not in ends.axes
        if r.vector * r.windows * r.together * r.runs > 1 or not alike:
            return "each output has ends of its own"
    if r.side_by_side:
        if exact_width(r.outputs, c.anchor, c.step.dims) != r.outputs:
            return f"{r.outputs} outputs do not divide its last axis"
        if r.at_once and (why := _why_not_several(c, r)):
            return why
        if r.together * r.runs > 1 or (r.unroll > 1 and not r.by_columns):
            return "a thread has its outputs by itself"
        rows = math.prod(a.extent for a in anchor.reduce)
        if r.by_columns and r.unroll > max(1, -(-rows // r.lanes)):
            return f"{r.unroll} rows are on their way of {rows} for {r.lanes} lanes"
        loops = [anchor.reduce[p].extent for p in r.order or range(len(anchor.reduce))]
        loops = loops[:-1] if r.windows > 1 else loops
        if (
            r.exact
            and not r.by_columns
            and (
                len(r.unrolled) != len(loops)
                or any(not 1 <= u <= max(n, 1) for u, n in zip(r.unrolled, loops, strict=True))
            )
        ):
            return f"{r.unrolled} iterations in straight line of {loops}"
        return ""
    form = form_of(c.anchor, c.step.dims, r, c.target.threads)
    if r.vector > 1 and not (form.axes and form.axes[-1].extent % r.vector == 0):
        return f"vectors of {r.vector} do not divide its last axis"
    if form.outputs % r.together:
        return f"{r.together} neighbours do not divide its outputs"
    if r.runs > max(1, -(-form.all_runs // form.groups)) or form.parts > MOST_PARTS:
        return f"a group has {r.runs} runs of {r.together} outputs"
    if r.unroll > form.turns:
        return f"{r.unroll} vectors are on their way of {form.turns}"
    return ""


def _why_not_several(c: Checked, r: Reduce) -> str:
    """Why a thread cannot have so many outputs of a segmented reduction at once; "" if it can."""
    anchor = c.anchor
    assert isinstance(anchor, Compute)
    if r.lanes > 1 or len(r.at_once) != len(c.step.dims) or min(r.at_once) < 1:
        return f"a thread has {r.at_once} outputs at once"
    if math.prod(r.at_once) > MOST_SLOTS or not r.exact:
        return f"a thread has {r.at_once} outputs at once"
    return why_not_several(anchor)


def why_not_late(stage: Stage, _statements: Statements) -> str | None:
    """A stage may wait late if its first step prefetches weights; otherwise there is nothing to do before the hand-off."""
    if stage.steps[0].method.ahead("stage"):
        return None
    return "it prefetches no weights"


def _side_by_side(r: Reduce, target: Target) -> bool:
    """Whether contiguous outputs belong to one thread, or to lanes that are at most a warp apart."""
    if r.lanes == 1:
        return r.vector == 1
    return r.vector == r.windows == 1 and target.threads <= r.lanes * target.warp


def _whole_windows(r: Reduce, dims: tuple[Dim, ...]) -> bool:
    """Whether windows, and the outputs of each, divide the last two dims and their tiles. Where a task has all of the windows' dim, only
    the outputs have to. The last dim is the last axis."""
    if not r.side_by_side or len(dims) < 2 or dims[-1].axes != (dims[-2].axes[-1] + 1,):
        return False
    slid, last = dims[-2:]
    if len(slid.axes) == 1 and slid.tile == slid.extent and not slid.lead:
        sizes = ((last, r.outputs),)
    else:
        sizes = ((slid, r.windows), (last, r.outputs))
    whole = not any(size % by for d, by in sizes for size in (d.extent, d.tile, d.lead))
    return whole and r.windows <= slid.extent
