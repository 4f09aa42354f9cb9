"""`monotile.sparse` on the CPU and on the emulator, and plans broken on purpose."""

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.errors import VerificationError
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Bound, Plan, Step
from monotile.plan.walk import each_stage, stages_in
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error, exact
from tests.models.sparse_networks import NETWORKS, ONE_LIST, Rows, inputs


def steps(plan: Plan) -> list[Step]:
    return [s for stage in stages_in(plan.body) for s in stage.steps]


def by_rows(plan: Plan) -> list[Bound]:
    return [b for s in steps(plan) for b in s.bounds if b.at]


def half(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.half() if x.is_floating_point() else x for x in args)


on_emulator = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


def in_half(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model, args = inputs(name)
    return model.half(), half(args)


@pytest.mark.parametrize("name", NETWORKS)
def test_on_the_cpu(name: str) -> None:
    model, args = inputs(name)
    fast = monotile.compile(model, args, target="cpu")
    assert by_rows(fast.plan)
    for _ in range(2):
        right = exact(model, args)
        assert error(fast(*args), right) <= 2 * error(model(*args), right) + 1e-7
        args = tuple(x.flip(-1) for x in args)


@on_emulator
@pytest.mark.parametrize("name", NETWORKS)
def test_on_tensor_cores(name: str) -> None:
    model, args = in_half(name)
    fast = Emulated(model, args)
    assert by_rows(fast.plan)
    for seed in range(2):
        (found,) = fast(*args, seed=seed)
        right = exact(model, args)
        assert error(found, right) <= 1.5 * error(model(*args), right) + 1e-6
        args = tuple(x.flip(-1) for x in args)


@on_emulator
@pytest.mark.parametrize("name", ONE_LIST)
def test_a_list_for_all_rows(name: str) -> None:
    """Tensor cores take it for many rows, reductions for few."""
    model, args = in_half(name)
    right = exact(model, args)
    (found,) = Emulated(model, args)(*args)
    fast = monotile.compile(model, args, target="cpu")
    for result in (found, fast(*args)):
        assert error(result, right) <= 1.5 * error(model(*args), right) + 1e-6


def test_what_is_left_out_may_hold_anything() -> None:
    """Where the mask is false, and in rows of the other operand that nothing multiplies."""
    model, (x, mask, w) = inputs("rows")
    fast = monotile.compile(model, (x, mask, w), target="cpu")
    right = model(x, mask, w)
    dead = ~mask.any(0)
    assert dead.any()
    w[dead] = float("nan")
    torch.testing.assert_close(fast(x, mask, w), right)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_nothing_is_left(target: str) -> None:
    """Sums of no terms, also behind a call that left something where they are kept."""
    model, (x, mask, w) = inputs("rows")
    if target == "emulator" and COMPILER is None:
        pytest.skip("the emulator needs g++")
    args = (x, mask, w) if target == "cpu" else half((x, mask, w))
    fast = monotile.compile(model, args, target="cpu") if target == "cpu" else Emulated(model, args)
    for kept in (mask, torch.zeros_like(mask)):
        found = fast(args[0], kept, args[2])
        found = found[0] if isinstance(found, list) else found
        torch.testing.assert_close(found, model(args[0], kept, args[2]), rtol=1e-2, atol=2e-2)


def test_lengths_of_calls() -> None:
    model, (x, mask, w) = inputs("rows")
    columns = torch.export.Dim("columns", min=2, max=80)
    fast = monotile.compile(
        model, (x, mask, w), target="cpu", dynamic_shapes=(None, None, {1: columns})
    )
    for n in (2, 17, 80):
        torch.testing.assert_close(fast(x, mask, w[:, :n]), model(x, mask, w[:, :n]))


Change = Callable[[Bound], Bound]
BROKEN: dict[str, tuple[Change, str]] = {
    "of no rows": (lambda b: msgspec.structs.replace(b, at=()), "is not live along"),
    "of other runs": (lambda b: msgspec.structs.replace(b, at=((b.at[0][0], 16),)), "is not live along"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_plan_with_other_bounds_is_refused(name: str) -> None:
    plan, program = made()
    change, words = BROKEN[name]

    def changed(x: Step) -> Step:
        return msgspec.structs.replace(x, bounds=tuple(change(b) if b.at else b for b in x.bounds))

    with pytest.raises(VerificationError, match=words):
        verify(mapped(plan, changed), program, cuda_target("sm_90a"))


def test_a_task_lies_within_one_run() -> None:
    """And a product that counts all terms, or tasks across runs, is refused."""
    plan, program = made()

    def across(x: Step) -> Step:
        dims = tuple(
            msgspec.structs.replace(d, tile=96, stage=d.stage) if d.tile == 32 else d
            for d in x.dims
        )
        return msgspec.structs.replace(x, dims=dims) if any(b.at for b in x.bounds) else x

    with pytest.raises(VerificationError):
        verify(mapped(plan, across), program, cuda_target("sm_90a"))
    unbounded = mapped(plan, lambda x: msgspec.structs.replace(x, bounds=()))
    with pytest.raises(VerificationError, match="that are dead"):
        verify(unbounded, program, cuda_target("sm_90a"))


def made():
    """The plan of a product in float16, and its Program."""
    _, args = inputs("rows")
    fast = Emulated(Rows(), half(args))
    return fast.plan, fast.program


def mapped(plan: Plan, change: Callable[[Step], Step]) -> Plan:
    body = each_stage(
        plan.body, lambda s: msgspec.structs.replace(s, steps=tuple(map(change, s.steps)))
    )
    return msgspec.structs.replace(plan, body=body)
