"""The Plan verifier: no race, no deadlock, every buffer fits. Runs on every compile, before anything is emitted.

Independent of how the Plan was made: it replays the stages, loops included, and follows who wrote which bytes.
"""

import math
from collections import Counter

from monotile.analysis.dependence import follows, independent, loads_of
from monotile.analysis.states import may_share, scattered, steady_weights
from monotile.ir.program import Compute, Loop, Program, Scatter, statements, updates, used
from monotile.kernels.attention.match import attention
from monotile.kernels.rowwise.cuts import even, scratch_bytes
from monotile.kernels.rowwise.match import rowwise
from monotile.kernels.rowwise.moments import moments
from monotile.kernels.transpose.match import behind_last
from monotile.plan.check.invalid import fail
from monotile.plan.check.messages import check_messages, received_bytes
from monotile.plan.check.races import replay
from monotile.plan.nodes import (
    Attend,
    Contract,
    Dim,
    HoldRows,
    Interleave,
    Map,
    Plan,
    PlanNode,
    Pointer,
    Reduce,
    Repeat,
    Resident,
    Serial,
    Shared,
    Stage,
    Step,
    Turn,
)
from monotile.schedule.prefetch.early import weights_of
from monotile.schedule.prefetch.late import several_blocks, why_not_ahead, why_not_late
from monotile.targets.target import Target
from monotile.transform.gather import joins

PANEL_ALIGN = 1024  # bytes: eight lines, among which wgmma has cells permuted


def verify(plan: Plan, program: Program, target: Target) -> None:
    """Raises VerificationError naming the stage and the tensor at fault."""
    computes = {
        s.out.name: s for s in statements(program.body) if isinstance(s, (Compute, Scatter))
    }
    _check_launch(plan, target)
    _check_places(plan, program, computes)
    _check_updates(plan, program, computes)
    _check_states(plan, program, computes)
    _check_loops(plan, program)
    stages, weights = list(_stages(plan.body)), steady_weights(program)
    if len({s.name for s in stages}) != len(stages):
        fail("two stages have one name")
    done: set[str] = set()
    for stage in stages:
        for step in stage.steps:
            _check_step(stage, step, computes, target)
            done.update(step.computes)
        _check_chip(stage, plan, target, computes, _kept_round(stage, plan.body))
        if stage.steps[0].following and math.prod(stage.grid) <= plan.launch.workers:
            fail(f"{stage.name}: a worker has no next task whose operands to ask for")
        if stage.late and stage.handoff != "grid":
            fail(f"{stage.name} waits late for no hand-off of the grid")
        if stage.late and (why := why_not_late(stage, computes, plan.launch.workers)):
            fail(f"{stage.name} cannot wait late: {why}")
        for step in stage.steps:
            early = isinstance(step.method, Reduce) and step.method.early
            if early and not weights_of(step, computes, weights):
                fail(f"{stage.name} has no weights to ask for early")
        if why := why_not_ahead(stage, computes, weights):
            fail(f"{stage.name} cannot ask for an operand ahead: {why}")
        if not may_share([[computes[n] for n in step.computes] for step in stage.steps], program):
            fail(f"{stage.name} overwrites a state that another of its tasks may still read")
    _check_kept(plan.body, target)
    if missing := set(computes) - done:
        fail(f"no stage computes {', '.join(sorted(missing))}")
    check_messages(plan, program, computes)
    replay(plan, program, computes)


def _stages(nodes: tuple[PlanNode, ...]) -> list[Stage]:
    out: list[Stage] = []
    for node in nodes:
        match node:
            case Stage():
                out.append(node)
            case Repeat():
                out.extend(_stages(node.body))
    return out


def _check_launch(plan: Plan, target: Target) -> None:
    launch = plan.launch
    if not 1 <= launch.workers or launch.threads > 1024:
        fail(f"a launch of {launch.workers} workers with {launch.threads} threads")
    if not target.has.virtual_workers and launch.workers > target.workers:
        fail(f"{launch.workers} workers cannot all be resident: the target has {target.workers}")
    if target.has.scratchpad and launch.shared_bytes > target.shared_bytes:
        fail(f"{launch.shared_bytes} bytes of on-chip memory: the target has {target.shared_bytes}")


def _check_places(plan: Plan, program: Program, computes: dict[str, Compute | Scatter]) -> None:
    count = len(plan.inputs) + len(plan.outputs) + len(plan.weights)
    if plan.outputs != tuple(t.name for t in program.results):
        fail("its outputs are not the Program's")
    names = [t.name for t in (*program.inputs, *program.outputs)]
    names += [w.tensor.name for w in program.weights]
    for name in dict.fromkeys((*names, *computes)):
        if not plan.places.get(name):
            fail(f"{name} has no place")
        for place in plan.places[name]:
            if isinstance(place, Pointer) and not 0 <= place.slot < count:
                fail(f"{name} lies at pointer {place.slot} of {count}")


def _check_loops(plan: Plan, program: Program) -> None:
    """The Plan's loops are the Program's."""

    def of(nodes: tuple[PlanNode, ...]) -> set[tuple[str, int]]:
        loops = [n for n in nodes if isinstance(n, Repeat)]
        return {(n.axis, n.extent) for n in loops}.union(*(of(n.body) for n in loops))

    wanted = {(s.axis.name, s.axis.extent) for s in statements(program.body) if isinstance(s, Loop)}
    if of(plan.body) != wanted:
        fail(f"its loops are {sorted(of(plan.body))}, the Program's are {sorted(wanted)}")


def _check_step(
    stage: Stage, step: Step, computes: dict[str, Compute | Scatter], target: Target
) -> None:
    missing = [name for name in step.computes if name not in computes]
    if missing:
        fail(f"{stage.name} computes {missing[0]}, which the Program does not have")
        return
    anchor = computes[step.computes[step.anchor]]
    named = sorted(p for d in step.dims for p in d.axes)
    if named != list(range(len(anchor.axes))):
        fail(f"{stage.name}: the dims of {anchor.out.name} do not name each axis once")
    for d in step.dims:
        if d.extent != math.prod(anchor.axes[p].extent for p in d.axes):
            fail(f"{stage.name}: a dim of {anchor.out.name} has the wrong extent")
        if d.stage is None and d.tile < d.extent:
            fail(f"{stage.name}: part of {anchor.out.name} is never computed")
        if d.stage is not None and stage.grid[d.stage] * d.tile + d.lead < d.extent:
            fail(f"{stage.name}: part of {anchor.out.name} is never computed")
        if d.stage is not None and (stage.grid[d.stage] - 1) * d.tile >= max(d.extent - d.lead, 1):
            fail(f"{stage.name}: a task has no part of {anchor.out.name}")
        if d.lead and not (
            isinstance(step.method, Map) and d.stage is not None and len(d.axes) == 1
        ):
            fail(f"{stage.name}: {anchor.out.name} cannot have rows in front")
    bound = {d.stage for d in step.dims if d.stage is not None}
    for axis, tiles in enumerate(stage.grid):
        if axis not in bound and tiles > 1:
            fail(f"{stage.name}: {anchor.out.name} would be computed by several tasks")
    after = () if isinstance(step.method, HoldRows) else step.computes[step.anchor + 1 :]
    for name in after:
        follower = computes[name]
        own = [x for x in loads_of(follower) if x.tensor.name in step.computes]
        if isinstance(follower, Scatter):
            alike = isinstance(anchor, Compute) and joins(
                follower, anchor, frozenset(step.computes)
            )
        else:
            alike = follower.out.shape == anchor.out.shape and follows(follower, own)
        if not alike:
            fail(f"{stage.name}: {name} does not follow {anchor.out.name} element by element")
    match step.method:
        case Attend() as a:
            _check_attention(stage, step, computes)
            warps = target.threads // target.warp
            if a.instruction == "wgmma" and (a.block_m % 64 or warps % (a.block_m // 16)):
                fail(f"{stage.name}: no whole warpgroups for {a.block_m} rows")
            if a.instruction == "wgmma" and a.slices(warps) == 1 and a.depth < 3:
                fail(f"{stage.name}: a ring that warpgroups share has three stages at least")
            if a.instruction == "wgmma" and step.scratch % PANEL_ALIGN:
                fail(
                    f"{stage.name}: panels of warpgroups begin at multiples of {PANEL_ALIGN} bytes"
                )
        case HoldRows():
            _check_rows(stage, step, computes, target)
        case Turn(_, behind):
            axes = step.dims[behind].axes
            if not isinstance(anchor, Compute) or behind_last(anchor) != axes:
                fail(f"{stage.name}: {anchor.out.name} is no copy with {axes} behind the last axis")
            if step.dims[behind].stage is not None:
                fail(
                    f"{stage.name}: a task of {anchor.out.name} has a part of what is behind the last axis"
                )
        case Interleave(vector) if not _whole_runs(vector, anchor, step.dims):
            fail(f"{stage.name}: threads do not have {vector} runs of {anchor.out.name} each")
        case Contract() as c if not target.has.register_tiles:
            if c.warps_m * c.warps_n * c.slices * c.teams * target.warp != target.threads:
                fail(f"{stage.name}: the warps of {anchor.out.name} do not add up")
            if c.teams > 1 and (len(stage.steps) > 1 or stage.late or c.slices > 1):
                fail(f"{stage.name}: teams of several steps or slices, or that wait late")
            if c.following and (why := _why_not_following(c, stage, step, anchor)):
                fail(f"{stage.name}: nothing of a next task can be asked for: {why}")
        case Reduce(lanes) if lanes > target.threads or lanes & (lanes - 1):
            fail(f"{stage.name}: {lanes} lanes")
        case Reduce() as r if r.outputs > 1 and not _side_by_side(r, target):
            fail(f"{stage.name}: a thread cannot have {r.outputs} outputs of {anchor.out.name} so")
        case Reduce() as r if r.windows > 1 and not _whole_windows(r, step.dims):
            fail(f"{stage.name}: threads do not have {r.windows} windows of {anchor.out.name} each")
        case _:
            pass
    if isinstance(anchor, Scatter):
        _check_scatter(stage, step, anchor)


def _side_by_side(r: Reduce, target: Target) -> bool:
    """Whether outputs that lie side by side are one thread's, or those of lanes a part of a warp apart."""
    if r.lanes == 1:
        return r.vector == 1
    return r.vector == r.windows == 1 and target.threads <= r.lanes * target.warp


def _why_not_following(
    c: Contract, stage: Stage, step: Step, anchor: Compute | Scatter
) -> str | None:
    if len(stage.steps) > 1 or c.slices > 1 or c.teams > 1 or not isinstance(anchor, Compute):
        return "it has several steps, slices or teams"
    chunks = -(-math.prod(anchor.reduce[p].extent for p in c.k) // c.block_k)
    if c.following >= c.depth or c.following > chunks:
        return f"{c.following} of {chunks} chunks in a ring of {c.depth}"
    if several_blocks(step, {c.m: c.block_m, c.n: c.block_n}):
        return "a task has several blocks"
    return None


def _whole_windows(r: Reduce, dims: tuple[Dim, ...]) -> bool:
    """Whether the windows, and the outputs of each, divide the last two dims and their tiles; the last one is the last axis."""
    if r.outputs == 1 or len(dims) < 2 or dims[-1].axes != (dims[-2].axes[-1] + 1,):
        return False
    sizes = ((dims[-2], r.windows), (dims[-1], r.outputs))
    return not any(size % by for d, by in sizes for size in (d.extent, d.tile, d.lead))


def _whole_runs(vector: int, s: Compute | Scatter, dims: tuple[Dim, ...]) -> bool:
    """Whether vectors divide all of the axis before the last, and every task has the last one whole."""
    if len(dims) != 2 or dims[1].axes != (len(s.axes) - 1,) or dims[1].stage is not None:
        return False
    return not any(size % vector for size in (dims[0].tile, s.axes[-2].extent))


def _check_attention(stage: Stage, step: Step, computes: dict[str, Compute | Scatter]) -> None:
    """What stands before the anchor is what its softmax is made of."""
    made = {n: s for n in step.computes if isinstance(s := computes[n], Compute)}
    anchor = made.get(step.computes[step.anchor])
    found = attention(anchor, made) if anchor is not None else None
    if found is None or tuple(s.out.name for s in found.inner) != step.computes[: step.anchor]:
        fail(f"{stage.name}: {step.computes[step.anchor]} is no softmax-weighted sum of the step")


def _check_rows(
    stage: Stage, step: Step, computes: dict[str, Compute | Scatter], target: Target
) -> None:
    """Its computes work row by row, a task has whole rows, and a sum has room."""
    method, anchor = step.method, step.computes[step.anchor]
    assert isinstance(method, HoldRows)
    found = rowwise([s for n in step.computes if isinstance(s := computes[n], Compute)])
    wide = [found is not None and found.wide(found.by_name(n)) for n in step.computes]
    if found is None or wide != [k >= step.anchor for k in range(len(wide))]:
        fail(f"{stage.name}: the computes of {anchor} do not work row by row")
        return
    if any(d.stage is not None and max(d.axes) >= found.rows for d in step.dims):
        fail(f"{stage.name}: a row of {anchor} has several tasks")
    if method.lanes > target.threads or method.lanes & (method.lanes - 1):
        fail(f"{stage.name}: {method.lanes} lanes")
    if found.span[-1] % method.vector or step.scratch_bytes < scratch_bytes(found, target):
        fail(f"{stage.name}: the vectors or the scratch of {anchor} do not fit")
    possible = set(moments(found)) if even(found, method, target) else set[str]()
    if not possible.issuperset(method.moments):
        fail(f"{stage.name}: {', '.join(method.moments)} cannot be found in one pass with a sum")


def _check_scatter(stage: Stage, step: Step, s: Scatter) -> None:
    """Threads and tasks share only axes along which no two writes meet."""
    match step.method:
        case Map():
            shared = set(range(len(step.dims)))
        case Serial(parallel):
            shared = {*parallel, *(k for k, d in enumerate(step.dims) if d.stage is not None)}
        case Reduce() | Contract() | Attend() | HoldRows() | Turn() | Interleave():
            fail(f"{stage.name}: {s.out.name} is neither reduced nor a product")
            return
    apart = independent(s.index, s.axes)
    if any(p not in apart for k in shared for p in step.dims[k].axes):
        fail(f"{stage.name}: writes of {s.out.name} may collide")


def _check_updates(plan: Plan, program: Program, computes: dict[str, Compute | Scatter]) -> None:
    """What a Scatter updates in place lies where its result does, and is no one else's."""
    uses = Counter(t.name for s in computes.values() for t in used(s))
    uses.update(t.name for t in program.outputs)
    states = scattered(program)
    for s in statements(program.body):
        if isinstance(s, Loop):
            uses.update(t.name for c in s.carried for t in (c.init, c.result))
            uses.update(k.value.name for k in s.stacked)
    for s in computes.values():
        if isinstance(s, Scatter):
            if set(plan.places[s.base.name]) != set(plan.places[s.out.name]):
                fail(f"{s.out.name} does not lie where {s.base.name}, which it updates, does")
            own = s.base.name in computes and uses[s.base.name] == 1
            if not own and states.get(s.out.name) != s.base.name:
                fail(f"{s.base.name}, which {s.out.name} updates in place, is used elsewhere")


def _check_states(plan: Plan, program: Program, computes: dict[str, Compute | Scatter]) -> None:
    """A state's new value is made where the old one lies, and nothing else is made there."""
    held = [*enumerate(plan.inputs)]
    held += enumerate(plan.weights, len(plan.inputs) + len(plan.outputs))
    slots = {name: slot for slot, name in reversed(held)}
    given = {slots[u.name] for u in updates(program)}
    makers: dict[str, int] = {}
    for u in updates(program):
        if plan.places[u.result.name] != (Pointer(slots[u.name]),):
            fail(f"{u.result.name} does not lie where the state {u.name} does")
        maker: Compute | Scatter | None = computes.get(u.result.name)
        while maker is not None:
            makers[maker.out.name] = slots[u.name]
            maker = computes.get(maker.base.name) if isinstance(maker, Scatter) else None
    for name in computes:
        for place in plan.places[name]:
            if (
                isinstance(place, Pointer)
                and place.slot in given
                and makers.get(name) != place.slot
            ):
                fail(f"{name} lies where a state does, and is not its new value")


def _check_chip(
    stage: Stage,
    plan: Plan,
    target: Target,
    computes: dict[str, Compute | Scatter],
    kept: list[Resident],
) -> None:
    """On-chip tensors do not overlap each other, a step's scratch or what the loops keep, and all fit."""
    taken = [(f"what is kept for {r.compute}", r.offset, r.offset + r.nbytes) for r in kept]
    taken += received_bytes(stage, plan, computes)
    for step in stage.steps:
        for name in step.computes:
            for place in plan.places[name]:
                if isinstance(place, Shared):
                    rows = math.prod(b.extent for b in place.box[:-1])
                    size = rows * place.pitch * computes[name].out.dtype.itemsize
                    taken.append((name, place.offset, place.offset + size))
    for i, (name, low, high) in enumerate(taken):
        for other, low2, high2 in taken[i + 1 :]:
            if low < high2 and low2 < high:
                fail(f"{stage.name}: {name} and {other} share on-chip memory")
        for step in stage.steps:
            if (
                step.scratch_bytes
                and low < step.scratch + step.scratch_bytes
                and step.scratch < high
            ):
                fail(f"{stage.name}: the scratch of {step.computes[0]} overlaps {name}")
    ends = [high for _, _, high in taken] + [s.scratch + s.scratch_bytes for s in stage.steps]
    if ends and max(ends) > plan.launch.shared_bytes and target.has.scratchpad:
        fail(f"{stage.name} needs {max(ends)} bytes on chip of {plan.launch.shared_bytes}")


def _kept_round(stage: Stage, nodes: tuple[PlanNode, ...]) -> list[Resident]:
    """What the Repeats round `stage` keep on chip."""
    out: list[Resident] = []
    for node in nodes:
        if isinstance(node, Repeat) and stage in _stages(node.body):
            out += [*node.resident, *_kept_round(stage, node.body)]
    return out


def _check_kept(nodes: tuple[PlanNode, ...], target: Target, held: int = 0) -> None:
    """What a loop keeps belongs to a reduction of one of its stages, whose tasks stay on their workers.

    held: bytes that the loops round `nodes` hold in registers.
    """
    for node in nodes:
        if not isinstance(node, Repeat):
            continue
        inside = {s.name: s for s in _stages(node.body)}
        for r in node.resident:
            stage = inside.get(r.stage)
            steps = stage.steps if stage else ()
            if not any(s.computes[0] == r.compute and isinstance(s.method, Reduce) for s in steps):
                fail(
                    f"the loop over {node.axis} keeps a weight for {r.compute}, no reduction of its own"
                )
            if stage and math.prod(stage.grid) > target.workers:
                fail(f"{stage.name} has several tasks a worker and keeps a weight for each")
        inner = held + sum(r.nbytes for r in node.resident if r.held)
        if inner > 4 * target.registers:
            fail(f"the loop over {node.axis} holds {inner} bytes in registers")
        _check_kept(node.body, target, inner)
