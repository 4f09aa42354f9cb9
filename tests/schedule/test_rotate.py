"""Loops of which an iteration begins with what can be done at the end of the one before."""

import numpy as np

from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Load, const
from monotile.ir.program import (
    Carry,
    Loop,
    Program,
    Scatter,
    Stack,
    Weight,
    compute,
    statements,
)
from monotile.ir.verify import verify
from monotile.kernels.draft import Context
from monotile.plan.check.structure import verify as verify_plan
from monotile.schedule.rotate import rotate_loops
from tests.schedule import programs as p

LAYERS, ROWS, WIDTH = 12, 8, 1024


def residual(*, stacked: bool = False) -> Program:
    """x' = x + w_l (g_l x / sum x): each layer begins with a normalisation. stacked: every normalised value is kept."""
    x, gain = p.tensor("x", ROWS, WIDTH), p.tensor("gain", LAYERS, WIDTH)
    w = p.tensor("w", LAYERS, WIDTH, WIDTH)
    axis, before = Axis("l", LAYERS), p.tensor("before", ROWS, WIDTH)
    sums = p.total("sums", before)
    norm = compute(
        p.tensor("norm", ROWS, WIDTH),
        lambda i, j: Binary(
            "mul",
            Binary("div", Load(before, (i, j)), Load(sums.out, (i,))),
            Load(gain, (axis, j)),
        ),
    )
    product = compute(
        p.tensor("product", ROWS, WIDTH),
        lambda i, j, k: Binary("mul", Load(norm.out, (i, k)), Load(w, (axis, j, k))),
        reduce=(WIDTH,),
        combiner="sum",
    )
    after = p.plus("after", before, product.out)
    out, every = p.tensor("out", ROWS, WIDTH), p.tensor("every", LAYERS, ROWS, WIDTH)
    kept = (Stack(norm.out, every),) if stacked else ()
    loop = Loop(axis, (Carry(x, before, after.out, out),), kept, (sums, norm, product, after))
    weights = tuple(Weight(t, tuple(f"{t.name}{k}" for k in range(LAYERS)), 1) for t in (gain, w))
    return p.ready(Program((x,), weights, (loop,), (out, every) if stacked else (out,)))


def loop_of(program: Program) -> Loop:
    (loop,) = (s for s in statements(program.body) if isinstance(s, Loop))
    return loop


def rotated(program: Program) -> Program:
    return rotate_loops(program, p.H100, Context.of(program, p.H100))


def test_a_normalisation_joins_the_sum_before_it() -> None:
    program = residual()
    after = rotated(program)
    verify(after)
    assert [c.param.name for c in loop_of(after).carried] == ["before", "norm"]
    plan = p.plan_of(after, p.H100)
    verify_plan(plan, after, p.H100)
    made = [{n for step in stage.steps for n in step.computes} for stage in p.stages(plan)]
    assert any({"after", loop_of(after).carried[1].result.name} <= names for names in made)


def test_the_result_is_the_same() -> None:
    program = residual()
    rng = np.random.default_rng(0)
    given = {"x": rng.random((ROWS, WIDTH), np.float32) + 0.5}
    for k in range(LAYERS):
        given[f"gain{k}"] = rng.random(WIDTH, np.float32)
        given[f"w{k}"] = rng.standard_normal((WIDTH, WIDTH), np.float32)
    (before,) = evaluate(program, given)
    (after,) = evaluate(rotated(program), given)
    np.testing.assert_allclose(before, after, rtol=1e-4)


def test_what_every_iteration_keeps_stays_where_it_is() -> None:
    program = residual(stacked=True)
    assert rotated(program) is program


def test_a_recurrence_stays_as_it_is() -> None:
    program = p.recurrence()
    assert rotated(program) is program


def test_what_is_updated_in_place_stays_where_it_is() -> None:
    program = p.ready(updated())
    after = rotated(program)
    verify_plan(p.plan_of(after, p.H100), after, p.H100)


def updated() -> Program:
    """x' = tanh(x w), and of every x a copy with its second row in place of the first: the copy is written in place."""
    x, before = p.tensor("x", ROWS, WIDTH), p.tensor("before", ROWS, WIDTH)
    w = p.tensor("w", WIDTH, WIDTH)
    base = compute(p.tensor("base", ROWS, WIDTH), lambda i, j: Load(before, (i, j)))
    row = Axis("i0", WIDTH)
    copy = Scatter(
        p.tensor("copy", ROWS, WIDTH),
        base.out,
        (row,),
        (const(0, p.I64), row),
        Load(before, (const(1, p.I64), row)),
    )
    product = p.matmul("product", before, w)
    after = p.pointwise("after", product.out, "tanh")
    axis, out, every = (
        Axis("l", LAYERS),
        p.tensor("out", ROWS, WIDTH),
        p.tensor("every", LAYERS, ROWS, WIDTH),
    )
    body = (base, copy, product, after)
    loop = Loop(axis, (Carry(x, before, after.out, out),), (Stack(copy.out, every),), body)
    return Program((x,), (Weight(w, ("w",)),), (loop,), (out, every))
