"""The Plan verifier: no race, no deadlock, every buffer fits. Runs on every compile, before code generation.

Independent of the scheduler: it replays the stages, loops included, and tracks which worker wrote which bytes.
"""

import math

from monotile.analysis.dependence import follows, loads_of
from monotile.analysis.in_place import first_updates, scatters_of, tables_of, updates_in
from monotile.analysis.states import may_share, overwritten_by, scattered, steady_weights
from monotile.analysis.uses import mentions
from monotile.codegen.view import View, Views
from monotile.ir.program import Compute, Loop, Program, Scatter, state_names, statements, updates
from monotile.kernels.family import Checked
from monotile.kernels.panels import copies
from monotile.kernels.registry import family_of, why_not_late
from monotile.plan.access import chip_results, received_bytes, workers_of
from monotile.plan.check.bounds import check_bounds
from monotile.plan.check.control import check_control
from monotile.plan.check.messages import check_messages
from monotile.plan.check.on_chip import check_on_chip
from monotile.plan.check.races import replay
from monotile.plan.check.watched import check_watched
from monotile.plan.invalid import fail
from monotile.plan.live_tasks import is_given, live_tasks
from monotile.plan.nodes import Choose, Plan, PlanNode, Repeat, Resident, Stage, Step
from monotile.plan.places import Pointer, Value
from monotile.plan.walk import bodies_of, nodes_in, stages_in
from monotile.targets.target import Target
from monotile.transform.predicates import joins


def verify(plan: Plan, program: Program, target: Target) -> None:
    """Raises VerificationError naming the stage and the tensor at fault."""
    computes = {
        s.out.name: s for s in statements(program.body) if isinstance(s, (Compute, Scatter))
    }
    _check_launch(plan, target)
    _check_places(plan, program, computes)
    _check_updates(plan, program, computes)
    _check_states(plan, program, computes)
    check_control(plan, program)
    check_on_chip(plan, computes, target)
    stages, weights = list(stages_in(plan.body)), steady_weights(program)
    views = Views(program, plan.places, plan.body)
    if len({s.name for s in stages}) != len(stages):
        fail("two stages have one name")
    done: set[str] = set()
    overwritten, tables = overwritten_by(program), tables_of(program)
    for stage in stages:
        view = views.of(stage)
        for step in stage.steps:
            _check_step(step, view, target, weights)
            done.update(step.computes)
        _check_chip(stage, plan, target, computes, _kept_round(stage, plan.body))
        if stage.steps[0].method.ahead("task") and math.prod(stage.grid) <= plan.launch.workers:
            fail(f"{stage.name}: a worker has no next task whose operands to ask for")
        _check_live(stage, plan, computes)
        if stage.late and stage.handoff != "grid":
            fail(f"{stage.name} waits late for no hand-off of the grid")
        if stage.late and (why := why_not_late(stage, computes, plan.launch.workers)):
            fail(f"{stage.name} cannot wait late: {why}")
        steps = [[computes[n] for n in step.computes] for step in stage.steps]
        if not may_share(steps, overwritten, tables):
            fail(f"{stage.name} overwrites an old value that another of its tasks may still read")
    _check_kept(plan.body, target)
    panels = copies(plan.body, program, views, _given(plan))
    if plan.panels != panels or not all(p.parts for p in panels):
        fail("its panels are not those that its steps read")
    if missing := set(computes) - done:
        fail(f"no stage computes {', '.join(sorted(missing))}")
    check_watched(plan, program, computes)
    check_messages(plan, program, computes)
    replay(plan, program, computes)


def _check_launch(plan: Plan, target: Target) -> None:
    launch = plan.launch
    if not 1 <= launch.workers or launch.threads > 1024:
        fail(f"a launch of {launch.workers} workers with {launch.threads} threads")
    if not target.has.virtual_workers and launch.workers > target.workers:
        fail(f"{launch.workers} workers cannot all be resident: the target has {target.workers}")
    if target.has.scratchpad and launch.shared_bytes > target.shared_bytes:
        fail(f"{launch.shared_bytes} bytes of on-chip memory: the target has {target.shared_bytes}")
    if launch.index_bits not in (32, 64):
        fail(f"indices of {launch.index_bits} bits")
    if launch.functions != "inlined" and not target.has.lockstep:
        fail(f"its functions are {launch.functions}, which the target does not know")


def _check_live(stage: Stage, plan: Plan, computes: dict[str, Compute | Scatter]) -> None:
    """Checks that no task with a live element is skipped."""
    if stage.live:
        allowed = live_tasks(stage, computes, plan.places)
        handed = any(stage in n.body for n in nodes_in(plan.body) if isinstance(n, Repeat) and n.messages)  # fmt: skip
        early = stage.late and not all(is_given(x, plan.places) for x in stage.live)
        if handed or early or not set(stage.live) <= set(allowed):
            fail(f"{stage.name} leaves out tasks that it needs")


def _given(plan: Plan) -> int:
    """Slots of pointers to the caller's tensors."""
    return len(plan.inputs) + len(plan.outputs) + len(plan.weights)


def _check_places(plan: Plan, program: Program, computes: dict[str, Compute | Scatter]) -> None:
    count = _given(plan)
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
    for slot, name in enumerate(plan.inputs):
        by_value = Value(slot) in plan.places.get(name, ())
        if by_value != (name in program.by_value):
            fail(f"{name} is by value and no size, or a size and not by value")
    for slot, t in enumerate(program.results, len(plan.inputs)):
        if Pointer(slot) not in plan.places.get(t.name, ()):
            fail(f"the result {t.name} does not lie where the caller has it")


def _check_step(step: Step, view: View, target: Target, steady: frozenset[str]) -> None:
    stage, computes = view.stage, view.statements
    missing = [name for name in step.computes if name not in computes]
    if missing:
        fail(f"{stage.name} computes {missing[0]}, which the Program does not have")
        return
    if step.anchor >= len(step.computes):
        fail(f"{stage.name}: the step of {step.computes[0]} lacks its anchor")
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
        if d.lead and not (step.method.has_lead and d.stage is not None and len(d.axes) == 1):
            fail(f"{stage.name}: {anchor.out.name} cannot have rows in front")
    bound = {*step.method.own_axes, *(d.stage for d in step.dims if d.stage is not None)}
    for axis, tiles in enumerate(stage.grid):
        if axis not in bound and tiles > 1:
            fail(f"{stage.name}: {anchor.out.name} would be computed by several tasks")
    after = step.computes[step.anchor + 1 :] if step.method.has_followers else ()
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
    check_bounds(step, view, target)
    family_of(step.method).check(Checked(step, view, target, steady))
    shared = step.method.thread_vectors(math.prod(d.tile + d.lead for d in step.dims))
    if not 0 <= step.first_thread < (target.threads if shared else 1):
        fail(f"{stage.name}: {anchor.out.name} cannot begin with thread {step.first_thread}")


def _check_updates(plan: Plan, program: Program, computes: dict[str, Compute | Scatter]) -> None:
    """Checks that a tensor updated in place, by a Scatter or a loop, has its result's place, and shares it with no other."""
    uses, old = mentions(program), scattered(program)
    every = list(statements(program.body))
    loops = [s for s in every if isinstance(s, Loop)]
    for s in loops:
        old |= first_updates(s)
    ours = computes.keys() | {o for s in loops for o in updates_in((s,))}
    for result, base in ((r, b) for s in every for r, b in updates_in((s,)).items()):
        if set(plan.places[base]) != set(plan.places[result]):
            fail(f"{result} does not lie where {base}, which it updates, does")
        own = base in ours and uses[base] == 1
        if not own and old.get(result) != base:
            fail(f"{base}, which {result} updates in place, is used elsewhere")


def _check_states(plan: Plan, program: Program, computes: dict[str, Compute | Scatter]) -> None:
    """Checks that a state's new value is written to the old one's place, and nothing else is written there."""
    held = [*enumerate(plan.inputs)]
    held += enumerate(plan.weights, len(plan.inputs) + len(plan.outputs))
    slots = {name: slot for slot, name in reversed(held)}
    slots |= {w.tensor.name: slots[w.parts[0]] for w in program.weights if len(w.parts) > 1}
    given = {slots[name] for name in (*program.states, *state_names(program))}
    makers: dict[str, int] = {}
    for u in updates(program):
        if plan.places[u.result.name] != (Pointer(slots[u.name]),):
            fail(f"{u.result.name} does not lie where the state {u.name} does")
        makers |= dict.fromkeys((u.result.name, *scatters_of(program, u.result.name)), slots[u.name])  # fmt: skip
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
    """Checks that on-chip tensors do not overlap each other, a step's scratch or a loop's pinned weights, and that all fit."""
    mine = workers_of(stage, plan.launch.workers)
    near = _kept_near(stage, plan, kept)
    taken = [*near, *((*x, mine) for x in received_bytes(stage, plan.body, computes))]
    taken += [(*x, mine) for x in chip_results(stage, computes, plan.places)]
    for i, (name, low, high, workers) in enumerate(taken):
        for other, low2, high2, others in taken[i + 1 :]:
            if low < high2 and low2 < high and workers & others:
                fail(f"{stage.name}: {name} and {other} share on-chip memory")
        for step in stage.steps:
            if (
                step.scratch_bytes
                and low < step.scratch + step.scratch_bytes
                and step.scratch < high
            ):
                fail(f"{stage.name}: the scratch of {step.computes[0]} overlaps {name}")
    ends = [high for _, _, high, _ in taken] + [s.scratch + s.scratch_bytes for s in stage.steps]
    if ends and max(ends) > plan.launch.shared_bytes and target.has.scratchpad:
        fail(f"{stage.name} needs {max(ends)} bytes on chip of {plan.launch.shared_bytes}")


def _kept_near(
    stage: Stage, plan: Plan, kept: list[Resident]
) -> list[tuple[str, int, int, frozenset[int]]]:
    """The part of `kept` on the stage's workers: (what, first byte, byte after the last, on which workers)."""
    if not kept:
        return []
    makers = {r.stage for r in kept}
    every = (s for s in stages_in(plan.body) if s.name in makers)
    on = {s.name: workers_of(s, plan.launch.workers) for s in every}
    mine = workers_of(stage, plan.launch.workers)
    found = ((r, on.get(r.stage, mine)) for r in kept)
    return [
        (f"what is kept for {r.compute}", r.offset, r.offset + r.nbytes, workers)
        for r, workers in found
        if workers & mine
    ]


def _kept_round(stage: Stage, nodes: tuple[PlanNode, ...]) -> list[Resident]:
    """The weights that the Repeats around `stage` keep on chip."""
    out: list[Resident] = []
    for node in nodes:
        for body in bodies_of(node):
            if stage in stages_in(body):
                out += [
                    *(node.resident if isinstance(node, Repeat) else ()),
                    *_kept_round(stage, body),
                ]
    return out


def _check_kept(nodes: tuple[PlanNode, ...], target: Target, held: int = 0) -> None:
    """Checks pinned weights: each belongs to a reduction of one of the loop's stages, whose tasks stay on their workers.

    held: bytes that the loops around `nodes` hold in registers.
    """
    for node in nodes:
        if isinstance(node, Choose):
            for body in node.bodies:
                _check_kept(body, target, held)
        if not isinstance(node, Repeat):
            continue
        inside = {s.name: s for s in stages_in(node.body)}
        for r in node.resident:
            stage = inside.get(r.stage)
            steps = stage.steps if stage else ()
            if not any(s.computes[0] == r.compute and s.method.pins for s in steps):
                fail(
                    f"the loop over {node.axis} keeps a weight for {r.compute}, no reduction of its own"
                )
            if stage and math.prod(stage.grid) > target.workers:
                fail(f"{stage.name} has several tasks a worker and keeps a weight for each")
        inner = held + sum(nbytes for _, nbytes in {r.place for r in node.resident if r.held})
        if inner > 4 * target.registers:
            fail(f"the loop over {node.axis} holds {inner} bytes in registers")
        _check_kept(node.body, target, inner)
