"""Streamed weights in a Plan: in which order they come, what lies where on chip, and Plans that are broken on purpose."""

import functools
from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor, nn

from monotile.config import Options
from monotile.errors import VerificationError
from monotile.frontends.torch.capture import capture
from monotile.kernels.gemv.method import Gemv
from monotile.kernels.registry import read_plan
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Stage
from monotile.plan.places import Replica, Workspace
from monotile.plan.printer import show
from monotile.plan.streams import any_streams, streams
from monotile.plan.walk import each_stage, stages_in
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.test_gemv_emulated import SMALL, Network

HOPPER = cuda_target("h200")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


@functools.cache
def made() -> Emulated:
    torch.manual_seed(0)
    model = Network(4, 1024, 2048, 3000).half().eval()
    return Emulated(model, (torch.randn(1, 1024).half(),), 32, target=SMALL)


def streaming(plan: Plan) -> list[str]:
    steps = (s for stage in stages_in(plan.body) for s in stage.steps)
    return [s.computes[0] for s in steps if isinstance(s.method, Gemv)]


def test_the_ring_takes_the_room_there_is() -> None:
    plan = made().plan
    ring = plan.launch.ring
    assert ring is not None
    assert (
        plan.launch.block_threads == plan.launch.threads + 128
    )  # a warp, and what its warpgroup gives up
    assert ring.slot_bytes * ring.slots > 100_000
    assert ring.under_way < ring.slots
    assert any(map(any_streams, plan.body))
    assert streaming(plan) == [s.computes[0] for stage in stages_in(plan.body) for s in stage.steps if streams(s)]  # fmt: skip


def test_small_results_are_made_everywhere() -> None:
    plan = made().plan
    replicas = {n for n, places in plan.places.items() if isinstance(places[0], Replica)}
    stages = [s for s in stages_in(plan.body) if s.everywhere]
    assert replicas
    assert all(s.grid in ((), (1,)) for s in stages)
    assert "everywhere" in show(plan)
    assert "a ring of" in show(plan)
    assert read_plan(plan.to_json()) == plan


class Normalised(nn.Module):
    """Sums that are normalised, layer by layer; the last is the result."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.up, self.down = (
            nn.ModuleList(nn.Linear(a * width, b * width) for _ in range(layers))
            for a, b in ((1, 4), (4, 1))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers + 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x)
        for up, down, norm in zip(self.up, self.down, self.norms[1:], strict=True):
            x = norm(x + down(nn.functional.gelu(up(x))))
        return x


def test_a_value_that_a_loop_ends_with_as_a_result_is_made_once() -> None:
    """What the loop begins with shares its places, and is made once as well."""
    captured = capture(Normalised(768, 8).half().eval(), (torch.zeros(1, 768).half(),))
    program, _ = transform(captured.program, captured.constants, Options())
    program, context = for_target(program, HOPPER)
    plan = schedule(program, HOPPER, Options(), context)
    verify(plan, program, HOPPER)


class Apart(nn.Module):
    """Two products of the same vector, one of them normalised head by head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.last = (nn.Linear(width, n * width) for n in (1, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.query(x).unflatten(-1, (-1, 64))
        query = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.last(query.flatten(-2) * self.key(x).unflatten(-1, (3, -1)).amax(-2))


def test_what_streams_comes_before_what_waits_for_it() -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 512).half()
    plan = Emulated(Apart(512).half().eval(), (x,), 8, target=SMALL).plan
    stages = list(stages_in(plan.body))
    assert [any(map(streams, s.steps)) for s in stages[:2]] == [True, True]
    assert stages[1].handoff != "grid"


def ring(**changes: int) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        assert plan.launch.ring is not None
        other = msgspec.structs.replace(plan.launch.ring, **changes)
        launch = msgspec.structs.replace(plan.launch, ring=other)
        return msgspec.structs.replace(plan, launch=launch)

    return change


def without_ring(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, launch=msgspec.structs.replace(plan.launch, ring=None))


def stages(change: Callable[[Stage], Stage]) -> Callable[[Plan], Plan]:
    return lambda plan: msgspec.structs.replace(plan, body=each_stage(plan.body, change))


def gemv(**changes: int) -> Callable[[Plan], Plan]:
    def change(stage: Stage) -> Stage:
        steps = tuple(
            msgspec.structs.replace(s, method=msgspec.structs.replace(s.method, **changes))
            if isinstance(s.method, Gemv)
            else s
            for s in stage.steps
        )
        return msgspec.structs.replace(stage, steps=steps)

    return stages(change)


def once(stage: Stage) -> Stage:
    return msgspec.structs.replace(stage, everywhere=False)


def always(stage: Stage) -> Stage:
    return msgspec.structs.replace(stage, everywhere=True)


def no_wait(stage: Stage) -> Stage:
    return msgspec.structs.replace(stage, handoff="none") if stage.handoff == "block" else stage


def replicas(change: Callable[[Replica], Replica | Workspace]) -> Callable[[Plan], Plan]:
    def changed(plan: Plan) -> Plan:
        places = {
            n: tuple(change(p) if isinstance(p, Replica) else p for p in ps)
            for n, ps in plan.places.items()
        }
        return msgspec.structs.replace(plan, places=places)

    return changed


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (without_ring, "there is no ring"),
        (ring(slots=1), "a ring of 1 slots"),
        (ring(under_way=0), "0 under way"),
        (ring(threads=64), "not supplied by 64 threads"),
        (gemv(team=1), "cannot share a slot"),
        (gemv(turns=3), "cannot share a slot"),
        (ring(slot_bytes=128), "do not fit a slot"),
        (ring(offset=0), "on-chip memory"),
        (ring(slots=60), "ends at"),
        (gemv(parts=3), "3 warps cannot share"),
        (gemv(rows=3), "3 rows for"),
        (gemv(second=False), "no matrix of weights"),
        (stages(once), "does not run everywhere"),
        (stages(always), "runs everywhere"),
        (stages(no_wait), "without waiting"),
        (replicas(lambda p: Replica(0)), "on-chip memory"),
        (replicas(lambda p: Workspace(0)), "writes what is not each worker's own"),
    ],
)
def test_broken_plans_are_refused(broken: Callable[[Plan], Plan], message: str) -> None:
    found = made()
    with pytest.raises(VerificationError, match=message):
        verify(broken(found.plan), found.program, SMALL)
