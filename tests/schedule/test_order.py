"""The order of stages: what is small goes beside earlier ones, where that costs less."""

from collections.abc import Callable

from monotile.ir.expr import Expr, Load, Unary, mul
from monotile.ir.program import Compute, compute
from tests.schedule.programs import H100, plan_of, program, stages, tensor

X, SMALL = tensor("x", 4096, 4096), tensor("given", 512)


def total(name: str, term: Callable[[Expr], Expr]) -> Compute:
    return compute(tensor(name), term, reduce=(512,), combiner="sum")


def test_a_small_stage_does_not_follow_a_large_one() -> None:
    """`late` needs `first` alone, and stands behind `large`, which keeps all workers busy: it comes beside `second`."""
    first = total("first", lambda k: Load(SMALL, (k,)))
    second = total("second", lambda k: mul(Load(SMALL, (k,)), Load(first.out, ())))
    large = compute(
        tensor("large", 4096),
        lambda m, k: mul(Load(X, (m, k)), Load(second.out, ())),
        reduce=(4096,),
        combiner="sum",
    )
    late = total("late", lambda k: Unary("exp", mul(Load(SMALL, (k,)), Load(first.out, ()))))
    end = compute(tensor("end", 4096), lambda m: mul(Load(large.out, (m,)), Load(late.out, ())))
    plan = plan_of(program([X, SMALL], [first, second, large, late, end], end.out), H100)
    made = [n for s in stages(plan) for step in s.steps for n in step.computes]
    assert made.index("first") < made.index("late") < made.index("large")
