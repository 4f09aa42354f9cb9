"""The verifier refuses every Plan that a valid one was broken into."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from monotile.errors import VerificationError
from monotile.ir.expr import add
from monotile.ir.program import Program
from monotile.kernels.elementwise.method import Map
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.registry import read_plan
from monotile.kernels.scatter.method import Listed, Serial
from monotile.kernels.transpose.method import Interleave
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Dim, Plan, PlanNode, Prefetch, Repeat, Stage, Step
from monotile.plan.places import Pointer, Shared, Workspace
from monotile.plan.walk import with_bodies
from tests.schedule import programs as p

replace = msgspec.structs.replace


def mapped(plan: Plan, f: Callable[[Stage], Stage | None]) -> Plan:
    """`plan` with `f` applied to every stage; None leaves the stage out."""

    def go(nodes: tuple[PlanNode, ...]) -> tuple[PlanNode, ...]:
        out: list[PlanNode] = []
        for node in nodes:
            if not isinstance(node, Stage):
                out.append(with_bodies(node, go))
            elif (new := f(node)) is not None:
                out.append(new)
        return tuple(out)

    return replace(plan, body=go(plan.body))


def steps(plan: Plan, f: Callable[[Step], Step]) -> Plan:
    return mapped(plan, lambda s: replace(s, steps=tuple(f(x) for x in s.steps)))


def refused(plan: Plan, program: Program, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        verify(plan, program, p.H100)


def chain() -> Program:
    """Three stages on many workers, the last one reading the first one's result and the second's."""
    x = p.tensor("x", 1000, 40)
    sums = p.total("sums", x)
    most = p.total("most", p.tensor("sums", 1000), "max")
    back = p.over_rows("back", x, sums.out, "sub")
    y = p.compute(
        p.tensor("y", 1000, 40),
        lambda i, j: p.Binary("mul", p.Load(back.out, (i, j)), p.Load(most.out, ())),
    )
    return p.program([x], [sums, most, back, y], most.out, y.out)


def asked(stage: Stage, **ahead: int) -> Stage:
    """`stage` with so many chunks of its first step's operands asked for ahead."""
    first, *rest = stage.steps
    if not isinstance(first.method, Matmul):
        return stage
    kept = [p for p in first.method.prefetch if p.at != "handoff" or p.what not in ahead]
    more = [Prefetch(side, "handoff", n) for side, n in ahead.items() if n]
    method = replace(first.method, prefetch=(*kept, *more))
    return replace(stage, steps=(replace(first, method=method), *rest))


CHAIN, MLP, LOOP, UPDATE = chain(), p.mlp(64, 256, p.F16), p.recurrence(), p.update()
EVERY = {"chain": CHAIN, "mlp": MLP, "loop": LOOP, "update": UPDATE, "softmax": p.mlp()}


@pytest.mark.parametrize("name", EVERY)
def test_what_the_scheduler_makes_is_valid(name: str) -> None:
    for target in p.TARGETS:
        plan = p.plan_of(EVERY[name], target)
        verify(plan, EVERY[name], target)
        assert read_plan(plan.to_json()) == plan


@pytest.mark.parametrize("name", EVERY)
def test_no_hand_off_is_spared(name: str) -> None:
    program = EVERY[name]
    plan = p.plan_of(program, p.H100)
    waiting = [s.name for s in p.stages(plan) if s.handoff == "grid"]
    for one in waiting:
        for weaker in ("none", "block"):
            broken = mapped(
                plan,
                lambda s: (
                    asked(replace(s, handoff=weaker, late=False), left=0, right=0)  # noqa: B023
                    if s.name == one  # noqa: B023
                    else s
                ),
            )
            refused(broken, program, "without waiting")


@pytest.mark.parametrize("name", EVERY)
def test_who_may_wait_late(name: str) -> None:
    program = EVERY[name]
    plan = p.plan_of(program, p.H100)
    for one in [s.name for s in p.stages(plan) if not s.late]:
        broken = mapped(plan, lambda s: replace(s, late=True) if s.name == one else s)  # noqa: B023
        refused(broken, program, "late")


def test_what_may_be_asked_for_ahead() -> None:
    plan = p.plan_of(MLP, p.H100)
    (one,) = (s for s in p.stages(plan) if s.late and isinstance(s.steps[0].method, Matmul))
    method = one.steps[0].method
    assert isinstance(method, Matmul)
    ahead, other = ("left", "right") if method.ahead("handoff", "left") else ("right", "left")
    assert method.ahead("handoff", ahead) > 0 == method.ahead("handoff", other)
    for change in (
        lambda s: asked(s, **{other: 1}) if s.late else s,
        lambda s: replace(s, late=False),
        lambda s: s if s.late else asked(s, left=1),
    ):
        refused(mapped(plan, change), MLP, "ahead")


@pytest.mark.parametrize("name", EVERY)
def test_no_stage_is_spared(name: str) -> None:
    program = EVERY[name]
    plan = p.plan_of(program, p.H100)
    for stage in p.stages(plan):
        broken = mapped(plan, lambda s: None if s.name == stage.name else s)  # noqa: B023
        refused(broken, program, "no stage computes")


def test_two_tensors_in_one_place() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    in_workspace = [n for n, found in plan.places.items() if isinstance(found[0], Workspace)]
    assert in_workspace
    broken = replace(plan, places=plan.places | {in_workspace[0]: plan.places["x"]})
    refused(broken, CHAIN, "which is not its own")


def test_results_that_lie_elsewhere() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    broken = replace(plan, places=plan.places | {"y": plan.places["most"]})
    refused(broken, CHAIN, "y does not lie where the caller has it")


def test_loops_that_are_not_the_programs() -> None:
    plan = p.plan_of(LOOP, p.H100)
    (loop,) = plan.body
    assert isinstance(loop, Repeat)
    refused(replace(plan, body=(replace(loop, extent=4),)), LOOP, "loops")
    refused(replace(plan, body=loop.body), LOOP, "loops")


def test_a_place_past_the_workspace() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    refused(
        replace(plan, launch=replace(plan.launch, workspace_bytes=8)), CHAIN, "bytes of workspace"
    )


def test_a_tensor_without_a_place_or_at_no_pointer() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    refused(replace(plan, places=plan.places | {"y": ()}), CHAIN, "no place")
    refused(replace(plan, places=plan.places | {"y": (Pointer(9),)}), CHAIN, "pointer 9")


def test_reading_before_writing() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    refused(replace(plan, body=plan.body[::-1]), CHAIN, "before anything wrote it|without waiting")


@pytest.mark.parametrize("name", EVERY)
def test_tiles_that_leave_something_out(name: str) -> None:
    program = EVERY[name]
    plan = p.plan_of(program, p.H100)

    def shorter(d: Dim) -> Dim:
        return replace(d, tile=d.tile - 1) if d.extent > 1 else d

    broken = steps(plan, lambda s: replace(s, dims=tuple(shorter(d) for d in s.dims)))
    refused(broken, program, "never computed")


@pytest.mark.parametrize("name", EVERY)
def test_tasks_without_a_part(name: str) -> None:
    program = EVERY[name]
    plan = p.plan_of(program, p.H100)

    def larger(d: Dim) -> Dim:
        return replace(d, tile=d.tile + d.extent)

    broken = steps(plan, lambda s: replace(s, dims=tuple(larger(d) for d in s.dims)))
    if any(extent > 1 for s in p.stages(plan) for extent in s.grid):
        refused(broken, program, "has no part")


def _with(plan: Plan, kind: type[Any], f: Callable[[Step], Step]) -> Plan:
    """`plan` with `f` applied to the steps of one method; there are some."""
    assert any(isinstance(x.method, kind) for s in p.stages(plan) for x in s.steps)
    return steps(plan, lambda s: f(s) if isinstance(s.method, kind) else s)


def test_dims_that_name_an_axis_twice() -> None:
    plan = p.plan_of(MLP, p.H100)
    broken = _with(plan, Matmul, lambda s: replace(s, dims=(s.dims[0], s.dims[0])))
    refused(broken, MLP, "name each axis once")


def test_dims_of_another_extent() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    broken = steps(
        plan, lambda s: replace(s, dims=tuple(replace(d, extent=d.extent + 1) for d in s.dims))
    )
    refused(broken, CHAIN, "wrong extent")


def test_warps_that_do_not_add_up() -> None:
    plan = p.plan_of(MLP, p.H100)
    broken = _with(plan, Matmul, lambda s: replace(s, method=replace(s.method, warps_m=3)))
    refused(broken, MLP, "warps of")


def test_teams_have_one_slice_and_one_step() -> None:
    plan = p.plan_of(MLP, p.H100)

    def halved(s: Step) -> Step:
        assert isinstance(s.method, Matmul)
        return replace(s, method=replace(s.method, tasks_at_once=2, slices=s.method.slices // 2))

    refused(_with(plan, Matmul, halved), MLP, "teams of")


def test_lanes_that_are_no_power_of_two() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    broken = _with(plan, Reduce, lambda s: replace(s, method=replace(s.method, lanes=3)))
    refused(broken, CHAIN, "3 lanes")


def test_too_much_on_chip_memory() -> None:
    plan = p.plan_of(MLP, p.H100)
    most = p.H100.shared_bytes + 1
    refused(replace(plan, launch=replace(plan.launch, shared_bytes=most)), MLP, "the target has")
    broken = _with(plan, Matmul, lambda s: replace(s, scratch=plan.launch.shared_bytes))
    refused(broken, MLP, "bytes on chip")


def test_too_many_workers() -> None:
    plan = p.plan_of(MLP, p.H100)
    refused(replace(plan, launch=replace(plan.launch, workers=133)), MLP, "resident")
    refused(replace(plan, launch=replace(plan.launch, workers=0)), MLP, "0 workers")


def _softmax() -> Program:
    """Too long for registers."""
    x = p.tensor("x", 256, 16384)
    return p.program([x], p.softmax(x), p.tensor("y", 256, 16384))


def test_on_chip_tensors_that_share_bytes() -> None:
    program = _softmax()
    plan = p.plan_of(program, p.H100)
    chip = [n for n, found in plan.places.items() if isinstance(found[0], Shared)]
    first, second = chip[:2]
    broken = replace(plan, places=plan.places | {second: plan.places[first]})
    refused(broken, program, "share on-chip memory")


def test_on_chip_tensors_in_the_scratch() -> None:
    plan = p.plan_of(program := _softmax(), p.H100)
    broken = steps(plan, lambda s: replace(s, scratch=0, scratch_bytes=1 << 12))
    refused(broken, program, "scratch")


def test_one_tensor_in_several_tasks_or_stages_of_one_name() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    refused(mapped(plan, lambda s: replace(s, grid=(*s.grid, 2))), CHAIN, "several tasks")
    refused(mapped(plan, lambda s: replace(s, name="one")), CHAIN, "one name")


def test_followers_must_follow() -> None:
    x = p.tensor("x", 8, 8)
    y = p.pointwise("y", x)
    turned = p.compute(p.tensor("t", 8, 8), lambda i, j: p.Load(y.out, (j, i)))
    program = p.program([x], [y, turned], turned.out)
    plan = p.plan_of(program, p.CPU)
    (stage, *_) = p.stages(plan)
    joined = replace(stage.steps[0], computes=("y", "t"))
    broken = replace(plan, body=(replace(stage, steps=(joined,)),))
    with pytest.raises(VerificationError, match="does not follow"):
        verify(broken, program, p.CPU)


def test_writes_that_may_meet_in_no_order() -> None:
    plan = p.plan_of(UPDATE, p.H100)
    refused(_with(plan, Serial, lambda s: replace(s, method=Map())), UPDATE, "may collide")
    refused(_with(plan, Serial, lambda s: replace(s, method=Serial((0,)))), UPDATE, "may collide")
    refused(_with(plan, Serial, lambda s: replace(s, method=Reduce(1))), UPDATE, "neither")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 2}, "other positions"),
        ({"axis": 7}, "several tasks"),
        ({"lanes": 3}, "3 lanes"),
        ({"terms": 0}, "0 terms"),
        ({"capacity": 300}, "do not fit"),
        ({"capacity": 9000}, "16 bits"),
    ],
    ids=str,
)
def test_lists_that_miss_something(change: dict[str, int], words: str) -> None:
    program = p.update("sum", width=512, count=1000)
    plan = p.plan_of(program, p.H100)
    wrong = _with(plan, Listed, lambda s: replace(s, method=replace(s.method, **change)))
    refused(wrong, program, words)


def test_lists_of_what_tasks_do_not_see() -> None:
    program = p.update("sum", rows=1000, count=1000)
    plan = p.plan_of(program, p.H100)

    def cut(step: Step) -> Step:
        at, along = step.dims
        return replace(step, dims=(replace(at, tile=500, stage=0), along))

    def two(stage: Stage) -> Stage:
        method, grid = stage.steps[0].method, (2, *stage.grid)
        if not isinstance(method, Listed):
            return stage
        own = replace(stage.steps[0], method=replace(method, axis=1))
        return replace(stage, grid=grid, steps=(cut(own),))

    refused(mapped(plan, two), program, "do not see all")
    single = _with(plan, Listed, lambda s: replace(s, method=Serial()))
    refused(single, program, "computed by several tasks")


def test_an_update_somewhere_else() -> None:
    plan = p.plan_of(UPDATE, p.H100)
    broken = replace(plan, places=plan.places | {"x_base": plan.places["x"]})
    refused(broken, UPDATE, "does not lie where")


def test_an_update_of_what_others_use() -> None:
    (copy, scatter, sums) = UPDATE.body
    late = p.pointwise("late", p.tensor("x_base", 6, 4))
    shared = replace(UPDATE, body=(copy, scatter, sums, late), outputs=(*UPDATE.outputs, late.out))
    plan = p.plan_of(shared, p.H100)
    refused(plan, shared, "used elsewhere")


def test_an_unknown_tensor() -> None:
    plan = p.plan_of(CHAIN, p.H100)
    broken = steps(plan, lambda s: replace(s, computes=("nothing", *s.computes[1:])))
    refused(broken, CHAIN, "does not have")


def depthwise() -> Program:
    """3 x 3 windows over 64 channels that lie side by side."""
    x, k = p.tensor("x", 8, 58, 66, 64, dtype=p.F16), p.tensor("k", 3, 3, 64, dtype=p.F16)
    y = p.compute(
        p.tensor("y", 8, 56, 64, 64, dtype=p.F16),
        lambda n, h, w, c, r, s: p.Binary("mul", p.Load(x, (n, add(h, r), add(w, s), c)), p.Load(k, (r, s, c))),
        reduce=(3, 3), combiner="sum",
    )  # fmt: skip
    return p.program([x, k], [y], y.out)


def test_windows_are_whole() -> None:
    program = depthwise()
    plan = p.plan_of(program, p.H100)
    verify(plan, program, p.H100)
    for n in (3, 5, 128):
        broken = _with(plan, Reduce, lambda s: replace(s, method=replace(s.method, windows=n)))  # noqa: B023
        refused(broken, program, "windows")
    merged = Dim((0, 1, 2, 3), 8 * 56 * 64 * 64, 1 << 20, 0)
    one = _with(plan, Reduce, lambda s: replace(s, dims=(merged,)))
    refused(steps(one, lambda s: s), program, "windows|grid|task")


def test_runs_are_whole() -> None:
    """An image with its channels first, copied with these last."""
    x = p.tensor("x", 3, 24, 32, dtype=p.F16)
    y = p.compute(p.tensor("y", 24, 32, 3, dtype=p.F16), lambda h, w, c: p.Load(x, (c, h, w)))
    program = p.program([x], [y], y.out)
    plan = p.plan_of(program, p.H100)
    verify(plan, program, p.H100)
    for n in (3, 64):
        broken = _with(plan, Interleave, lambda s: replace(s, method=Interleave(n)))  # noqa: B023
        refused(broken, program, "runs")
