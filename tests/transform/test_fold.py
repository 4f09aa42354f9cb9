"""Constant folding: what is folded, what is not, and that the meaning stays."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Cast, Const, Load, Select, Tensor, const, idx
from monotile.ir.program import Compute, Loop, Program, Stack, Weight, compute
from monotile.ir.verify import verify
from monotile.transform.simplify.fold import fold
from tests.ir.strategies import programs, same, values

F32, I64 = DType.F32, DType.I64
C = Tensor("c", (4,), F32)
P = Tensor("p", (4,), F32)
WEIGHTS = (Weight(C, ("c",)), Weight(P, ("p",)))
CONSTANTS = {"c": np.arange(4, dtype=np.float32)}


def _plus_one(name: str, x: Tensor) -> Compute:
    return compute(
        Tensor(name, x.shape, F32), lambda i: Binary("add", Load(x, (i,)), const(1.0, F32))
    )


@given(program=programs(), seed=st.integers(0, 1 << 16))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_meaning_stays(program: Program, seed: int) -> None:
    given_values = values(program, seed)
    constants = {p: given_values[p] for w in program.weights for p in w.parts if p != "a"}
    new, more = fold(program, constants)
    verify(new)
    after = evaluate(new, {**given_values, **more})
    assert all(same(a, b) for a, b in zip(evaluate(program, given_values), after, strict=True))
    again, same_constants = fold(new, more)
    assert again is new
    assert same_constants is more


def test_constants_fold_through_each_other_and_parameters_do_not() -> None:
    a, b, c = _plus_one("a", C), _plus_one("b", Tensor("a", (4,), F32)), _plus_one("d", P)
    program = Program((), WEIGHTS, (a, b, c), (b.out, c.out))
    new, constants = fold(program, CONSTANTS)
    assert new.body == (c,)
    np.testing.assert_array_equal(constants["const.b"], [2, 3, 4, 5])


def test_what_is_made_of_fills_alone_is_one_whatever_a_call_says() -> None:
    count = Tensor("count", (), I64)
    zeros = compute(Tensor("zeros", (4,), I64), lambda i: idx(0))
    r = Axis("r0", 4)
    some = Select(Binary("lt", r, Load(count, ())), Load(zeros.out, (r,)), idx(0))
    total = Compute(Tensor("total", (2,), I64), (Axis("i0", 2),), (r,), "sum", some)
    after = compute(Tensor("after", (2,), I64), lambda i: Binary("add", Load(total.out, (i,)), i))
    new, _ = fold(Program((count,), (), (zeros, total, after), (after.out,)), {})
    last = new.body[-1]
    assert isinstance(last, Compute)
    assert last.body == Axis("i0", 2)


def test_a_uniform_result_becomes_a_fill() -> None:
    s = compute(
        Tensor("m", (4,), DType.BOOL), lambda i: Binary("ge", Load(C, (i,)), const(0.0, F32))
    )
    new, constants = fold(Program((), WEIGHTS, (s,), (s.out,)), CONSTANTS)
    (fill,) = new.body
    assert isinstance(fill, Compute)
    assert fill.body == Const(True, DType.BOOL)
    assert constants == CONSTANTS


def test_an_index_out_of_range_stays_a_run_time_error() -> None:
    i = Tensor("i", (1,), I64)
    s = compute(Tensor("y", (1,), F32), lambda k: Load(C, (Load(i, (k,)),)))
    program = Program((), (*WEIGHTS, Weight(i, ("i",))), (s,), (s.out,))
    given = {**CONSTANTS, "i": np.array([9])}
    assert fold(program, given) == (program, given)


def test_in_a_loop_only_what_does_not_depend_on_the_iteration() -> None:
    axis = Axis("l", 3)
    still = _plus_one("still", C)
    moving = compute(
        Tensor("moving", (4,), F32),
        lambda i: Binary("add", Load(still.out, (i,)), Cast(axis, F32)),
    )
    stack = Stack(moving.out, Tensor("all", (3, 4), F32))
    program = Program((), WEIGHTS, (Loop(axis, (), (stack,), (still, moving)),), (stack.out,))
    new, constants = fold(program, CONSTANTS)
    (loop,) = new.body
    assert isinstance(loop, Loop)
    assert loop.body == (moving,)
    values = {**constants, "p": np.zeros(4, np.float32)}
    assert same(evaluate(new, values)[0], evaluate(program, values)[0])


def test_fills_and_large_results_are_not_stored() -> None:
    large = Tensor("large", (1 << 12, 1 << 12), F32)
    outer = compute(
        large, lambda i, j: Binary("mul", Load(C, (Binary("mod", i, idx(4)),)), Cast(j, F32))
    )
    fill = compute(Tensor("zeros", (4,), F32), lambda _: const(0.0, F32))
    program = Program((), WEIGHTS, (outer, fill), (large, fill.out))
    assert fold(program, CONSTANTS)[0] is program


def test_a_mask_made_of_axes_folds_through_what_is_computed_in_place() -> None:
    step = compute(Tensor("step", (8,), I64), lambda i: Binary("min", i, idx(0)))
    sums = compute(
        Tensor("sums", (8,), I64), lambda i, r: Load(step.out, (r,)), reduce=(8,), combiner="sum"
    )
    mixed = compute(
        Tensor("mixed", (8,), I64),
        lambda i: Binary("mul", Binary("add", i, Load(sums.out, (i,))), Load(step.out, (i,))),
    )
    program = Program((), (), (step, sums, mixed), (mixed.out,))
    new, _ = fold(program, {})
    assert [s.body for s in new.body if isinstance(s, Compute)] == [idx(0)] * 3


def test_bfloat16_and_signed_zeros_fold_bit_for_bit() -> None:
    half = Tensor("half", (3,), DType.BF16)
    s = compute(
        Tensor("y", (3,), DType.BF16),
        lambda i: Binary("mul", Load(half, (i,)), const(-1.0, DType.BF16)),
    )
    constants = {"half": np.array([0.0, -0.0, 1.5]).astype(DType.BF16.numpy)}
    new, more = fold(Program((), (Weight(half, ("half",)),), (s,), (s.out,)), constants)
    assert new.body == ()
    assert np.signbit(more["const.y"].astype(np.float32)).tolist() == [True, False, True]
