"""Reductions in the order of their only reader."""

import numpy as np

from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Tensor, Unary, const, idx
from monotile.ir.printer import show_statement
from monotile.ir.program import Compute, Program, compute
from monotile.ir.verify import verify
from monotile.transform.layout.reindex import reindex_reductions

F32 = DType.F32
X, W = Tensor("x", (4, 4, 6), F32), Tensor("w", (5, 6), F32)
Y, V, U = Tensor("y0", (4, 6), F32), Tensor("v", (2, 5, 6), F32), Tensor("u", (8, 5), F32)
# Windows of 2 x 2 out of an image of 4 x 4: p[window, place in it, channel].
P = compute(
    Tensor("p", (4, 4, 5), F32),
    lambda i, j, k, r: Binary("mul", Load(X, (i, j, r)), Load(W, (k, r))),
    reduce=(6,),
    combiner="sum",
)


def op(name: str, a: Expr, b: int | Expr) -> Expr:
    return Binary(name, a, idx(b) if isinstance(b, int) else b)


def back(i: Expr, j: Expr) -> tuple[Expr, Expr]:
    """Window, and place in it, of the pixel (i, j)."""
    window = op("add", op("mul", op("floordiv", i, 2), 2), op("floordiv", j, 2))
    place = op("add", op("mul", op("mod", i, 2), 2), op("mod", j, 2))
    return window, place


def image(name: str) -> Compute:
    return compute(
        Tensor(name, (4, 4, 5), F32), lambda i, j, k: Unary("tanh", Load(P.out, (*back(i, j), k)))
    )


def test_windows_are_put_back_by_the_product() -> None:
    y = image("y")
    program = Program((X, W), (), (P, y), (y.out,))
    new = reindex_reductions(program)
    verify(new)
    assert show_statement(new.body[1]) == ["y[i0:4, i1:4, i2:5] f32 = tanh(p[i0, i1, i2])"]
    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-4, 4, t.shape).astype(np.float32) for t in (X, W)}
    np.testing.assert_array_equal(evaluate(new, values)[0], evaluate(program, values)[0])
    assert reindex_reductions(new) is new


def test_what_is_read_under_a_condition_may_lie_outside() -> None:
    """As where a row is moved by one: `torch.cat([zeros, p], 1).view(...)[1:]`."""
    y = compute(
        Tensor("y", (4, 4, 5), F32),
        lambda i, j, k: Select(op("lt", idx(0), j), Load(P.out, (i, op("sub", j, 1), k)), const(0.0, F32)),
    )  # fmt: skip
    program = Program((X, W), (), (P, y), (y.out,))
    verify(program)
    assert reindex_reductions(program) is program


def test_what_others_read_or_keep_stays() -> None:
    y, z = image("y"), image("z")
    for program in (
        Program((X, W), (), (P, y, z), (y.out, z.out)),
        Program((X, W), (), (P, y), (y.out, P.out)),
    ):
        assert reindex_reductions(program) is program


def test_a_repeated_element_is_no_rearrangement() -> None:
    y = compute(
        Tensor("y", (4, 4, 5), F32),
        lambda i, j, k: Unary("tanh", Load(P.out, (i, op("max", j, 1), k))),
    )
    program = Program((X, W), (), (P, y), (y.out,))
    assert reindex_reductions(program) is program


def test_the_last_dimension_is_not_moved() -> None:
    flip = compute(
        Tensor("y", (4, 4, 5), F32),
        lambda i, j, k: Unary("tanh", Load(P.out, (i, j, Binary("sub", idx(4), k)))),
    )
    program = Program((X, W), (), (P, flip), (flip.out,))
    assert reindex_reductions(program) is program


def test_an_offset_by_a_loop_is_left_alone() -> None:
    shifted = compute(
        Tensor("y", (4, 4, 5), F32),
        lambda i, j, k: Unary(
            "tanh", Load(P.out, (op("mod", op("add", i, Axis("l", 3)), 4), j, k))
        ),
    )
    program = Program((X, W), (), (P, shifted), (shifted.out,))
    assert reindex_reductions(program) is program


def test_what_reads_a_product_by_places_is_computed_in_its_order() -> None:
    """[row, place] of a transposed convolution, whose columns are the places: a product with rows of its own again would read both factors by both."""
    p = compute(
        Tensor("p", (4, 2, 5), F32),
        lambda q, place, k, r: Binary("mul", Load(Y, (q, r)), Load(V, (place, k, r))),
        reduce=(6,),
        combiner="sum",
    )
    y = compute(
        Tensor("y", (8, 5), F32),
        lambda i, k: Binary(
            "mul",
            Unary("tanh", Load(p.out, (op("floordiv", i, 2), op("mod", i, 2), k))),
            Load(U, (i, k)),
        ),
    )
    z = compute(Tensor("z", (8, 5), F32), lambda i, k: Load(y.out, (op("sub", idx(7), i), k)))
    program = Program((Y, V, U), (), (p, y, z), (z.out,))
    new = reindex_reductions(program)
    verify(new)
    (line,) = show_statement(new.body[1])
    assert line == "y[i0:4, i1:2, i2:5] f32 = tanh(p[i0, i1, i2]) * u[i0 * 2 + i1, i2]"
    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-4, 4, t.shape).astype(np.float32) for t in (Y, V, U)}
    np.testing.assert_array_equal(evaluate(new, values)[0], evaluate(program, values)[0])
    whole = Program((Y, V, U), (), (p, y), (y.out,))
    assert reindex_reductions(whole) is whole
