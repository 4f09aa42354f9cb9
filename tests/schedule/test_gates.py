"""Gates in the steps of their products: which are found, when they are worth it, and which Plans of them are refused."""

import functools
from collections.abc import Callable

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monotile.analysis.contraction import factors
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.expr import Binary, Expr, Load, add, idx, loads, mul
from monotile.ir.expr import Tensor as Made
from monotile.ir.program import Compute, Program, compute
from monotile.kernels.matmul.gate import gate
from monotile.kernels.matmul.method import Matmul, MatmulGate
from monotile.kernels.registry import read_plan
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Step
from monotile.plan.places import Register, Workspace
from monotile.plan.walk import repeats, stages_in
from monotile.targets.target import Target
from tests.codegen.cpu_run import TARGET as CPU
from tests.codegen.test_gates_emulated import Siblings
from tests.schedule import programs as p
from tests.schedule.test_verify import refused, steps

H100 = p.H100
replace = msgspec.structs.replace


def siblings(width: int = 512, inner: int = 1024) -> nn.Module:
    """The MLP of Llama."""
    return Siblings(width, inner)


class Halves(nn.Module):
    """A gate of one layer, which may be a result too."""

    def __init__(self, width: int = 512, inner: int = 1024, *, given: bool = False) -> None:
        super().__init__()
        self.both, self.given = nn.Linear(width, 2 * inner), given

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        both = self.both(x)
        return (F.glu(both), both) if self.given else (F.glu(both),)


def planned(
    model: nn.Module, *shape: int, target: Target = H100, dtype: torch.dtype = torch.float16
) -> tuple[Program, Plan]:
    captured = capture(model.to(dtype).eval(), (torch.randn(shape).to(dtype),))
    first, _ = transform(captured.program, captured.constants, Options())
    program, context = for_target(first, target)
    plan = schedule(program, target, Options(), context)
    verify(plan, program, target)
    return program, plan


def gated(plan: Plan) -> list[Step]:
    found = (s for stage in stages_in(plan.body) for s in stage.steps)
    return [s for s in found if isinstance(s.method, MatmulGate)]


@pytest.mark.parametrize("make", [siblings, Halves])
def test_a_task_has_all_parts_of_some_columns(make: Callable[[], nn.Module]) -> None:
    _, plan = planned(make(), 256, 512)
    (step,) = gated(plan)
    assert isinstance(step.method, MatmulGate)
    assert (len(step.computes), step.method.parts) == (2, 2)
    assert plan.places[step.computes[0]] == (Register(),)
    assert step.dims[step.method.n].extent == 1024
    assert step.dims[step.method.n].tile <= step.method.block_n // 2
    assert "2 products side by side" in step.method.describe()
    assert len(list(stages_in(plan.body))) == (2 if make is siblings else 1)
    assert read_plan(plan.to_json()) == plan


def test_one_row_streams_its_weights() -> None:
    _, plan = planned(siblings(2048, 8192), 1, 2048)
    assert not gated(plan)


def test_what_others_read_is_stored() -> None:
    _, plan = planned(Halves(given=True), 256, 512)
    assert not gated(plan)


def test_register_tiles_have_none() -> None:
    _, plan = planned(Halves(), 256, 512, target=CPU, dtype=torch.float32)
    assert not gated(plan)


@pytest.mark.parametrize(("batch", "apart"), [(16, True), (64, False)])
def test_a_recurrence_keeps_its_weights(batch: int, apart: bool) -> None:
    """Where one stage of reductions has all of a step, its weights stay on chip; where it was a product and a stage behind it, there is one."""
    _, plan = planned(nn.GRU(448, 448), 8, batch, 448)
    (loop,) = repeats(plan.body)
    assert len(loop.body) == 1
    assert bool(loop.resident) == apart
    assert [s.method.products for s in gated(plan) if isinstance(s.method, Matmul)] == [3] * (
        not apart
    )


# What is found, by structure.

ROWS, INNER, K = 32, 48, 64
X, W = Made("x", (ROWS, K), p.F32), Made("w", (2 * INNER, K), p.F32)
P, TURNED = p.matmul("p", X, W, turned=True), p.matmul("t", W, X, turned=True)
Reader = Callable[[Expr, Expr], Expr]


def times(*found: tuple[Expr, ...], of: Compute = P) -> Expr:
    first, *others = (Load(of.out, i) for i in found)
    return functools.reduce(lambda a, b: Binary("mul", a, b), others, first)


def after(i: Expr, more: int) -> Expr:
    return add(i, idx(more))


FOUND: dict[str, tuple[Reader, int]] = {
    "halves": (lambda i, j: times((i, j), (i, after(j, INNER))), INNER),
    "in another order": (lambda i, j: times((i, after(j, INNER)), (i, j)), INNER),
    "pairs": (lambda i, j: times((i, mul(j, idx(2))), (i, after(mul(j, idx(2)), 1))), INNER),
    "three": (lambda i, j: times((i, j), (i, after(j, 32)), (i, after(j, 64))), 32),
    "a part of it": (lambda i, j: times((i, j), (i, after(j, 40))), 40),
}
LEFT_OUT: dict[str, tuple[Reader, int]] = {
    "one element": (lambda i, j: times((i, j)), 2 * INNER),
    "neighbours": (lambda i, j: times((i, j), (i, after(j, 1))), 2 * INNER - 1),
    "one for all": (lambda i, j: times((i, j), (i, idx(0))), INNER),
    "other rows too": (lambda i, j: times((i, j), (idx(0), after(j, INNER))), INNER),
    "backwards": (lambda i, j: times((i, j), (i, Binary("sub", idx(95), j))), INNER),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    read, columns = FOUND[name]
    result = compute(Made("y", (ROWS, columns), p.F32), read)
    found = gate(result, P)
    assert found is not None
    lefts = {factors(s)[0] for s in found.sums}
    assert len(lefts) == 1
    assert {s.axes for s in found.sums} == {result.axes}
    assert {x.tensor for x in loads(found.value)} == {s.out for s in found.sums}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out(name: str) -> None:
    read, columns = LEFT_OUT[name]
    assert gate(compute(Made("y", (ROWS, columns), p.F32), read), P) is None


def test_parts_have_the_left_side_in_common() -> None:
    """Halves of the rows are not side by side, and what is summed is no gate."""
    rows = compute(
        Made("y", (INNER, ROWS), p.F32), lambda i, j: times((i, j), (after(i, INNER), j), of=TURNED)
    )
    assert gate(rows, TURNED) is None
    halves, _ = FOUND["halves"]
    summed = compute(Made("y", (ROWS,), p.F32), halves, reduce=(INNER,), combiner="sum")
    assert gate(summed, P) is None


# What is refused.


def broken(plan: Plan, **fields: object) -> Plan:
    def changed(s: Step) -> Step:
        if not isinstance(s.method, MatmulGate):
            return s
        return replace(s, method=replace(s.method, **fields))

    return steps(plan, changed)


def test_what_the_verifier_refuses() -> None:
    program, plan = planned(siblings(), 256, 512)
    (step,) = gated(plan)
    product, m = step.computes[0], step.method
    assert isinstance(m, MatmulGate)
    refused(broken(plan, parts=3), program, "sums of 2 products, not of 3")
    refused(broken(plan, block_n=m.block_n + 1), program, "no gate of 2 products")
    refused(broken(plan, m=m.n, n=m.m), program, "do not divide its columns")
    stored = replace(plan, places={**plan.places, product: (Workspace(0),)})
    refused(stored, program, "which others read")
    plain = Matmul(**{name: getattr(m, name) for name in Matmul.__struct_fields__})
    names = step.computes
    ways: list[tuple[dict[str, object], str]] = [
        ({"method": plain}, "name each axis once"),
        ({"computes": names[::-1]}, "name each axis once"),
        ({"computes": names[:1]}, "lacks its anchor"),
    ]
    for fields, words in ways:
        wrong = steps(plan, lambda s, f=fields: replace(s, **f) if s == step else s)
        refused(wrong, program, words)
