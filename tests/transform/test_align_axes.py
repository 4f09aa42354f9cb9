"""Producers in the shape of their pointwise readers."""

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, Unary, const, idx
from monotile.ir.printer import show_statement
from monotile.ir.program import Compute, Loop, Program, Stack, Statement, compute
from monotile.ir.verify import verify
from monotile.transform.layout.align_axes import align_axes

F32 = DType.F32
X, W = Tensor("x", (8, 6), F32), Tensor("w", (4, 6), F32)
P = compute(
    Tensor("p", (8, 4), F32),
    lambda i, j, r: Binary("mul", Load(X, (i, r)), Load(W, (j, r))),
    reduce=(6,),
    combiner="sum",
)


def lines(*body: Statement, outputs: tuple[Tensor, ...]) -> list[str]:
    new = align_axes(Program((X, W), (), body, outputs))
    verify(new)
    return [line for s in new.body for line in show_statement(s)]


def test_an_axis_of_extent_one_more() -> None:
    e = compute(Tensor("e", (1, 8, 4), F32), lambda _, i, j: Unary("exp", Load(P.out, (i, j))))
    total = compute(
        Tensor("t", (4,), F32), lambda j, r: Load(P.out, (r, j)), reduce=(8,), combiner="sum"
    )
    assert lines(P, e, total, outputs=(e.out, total.out)) == [
        "p[i0:1, i1:8, i2:4] f32 = sum(r0:6) x[i1, r0] * w[i2, r0]",
        "e[i0:1, i1:8, i2:4] f32 = exp(p[0, i1, i2])",
        "t[i0:4] f32 = sum(r0:8) p[0, r0, i0]",
    ]


def test_a_chain_follows_its_end() -> None:
    a = compute(Tensor("a", (8, 1, 4), F32), lambda i, _, j: Unary("exp", Load(P.out, (i, j))))
    b = compute(Tensor("b", (4, 8), F32), lambda j, i: Unary("tanh", Load(a.out, (i, idx(0), j))))
    assert lines(P, a, b, outputs=(b.out,)) == [
        "p[i0:4, i1:8] f32 = sum(r0:6) x[i1, r0] * w[i0, r0]",
        "a[i0:4, i1:8] f32 = exp(p[i0, i1])",
        "b[i0:4, i1:8] f32 = tanh(a[i0, i1])",
    ]


def test_an_element_wise_producer_outside_a_loop_follows_its_reader_inside() -> None:
    axis = Axis("l", 3)
    a = compute(Tensor("a", (8, 6), F32), lambda i, j: Unary("exp", Load(X, (i, j))))

    def after(outside: Compute) -> list[str]:
        n, m = outside.out.shape
        b = compute(Tensor("b", (m, n), F32), lambda j, i: Unary("tanh", Load(outside.out, (i, j))))
        loop = Loop(axis, (), (Stack(b.out, Tensor("all", (3, m, n), F32)),), (b,))
        return lines(outside, loop, outputs=(loop.stacked[0].out,))

    assert after(a)[0] == "a[i0:6, i1:8] f32 = exp(x[i1, i0])"
    assert after(P)[0] == "p[i0:8, i1:4] f32 = sum(r0:6) x[i0, r0] * w[i1, r0]"


def test_a_permuted_reader_among_others_changes_nothing() -> None:
    a = compute(Tensor("a", (4, 8), F32), lambda j, i: Unary("exp", Load(P.out, (i, j))))
    b = compute(
        Tensor("b", (8,), F32), lambda i, r: Load(P.out, (i, r)), reduce=(4,), combiner="max"
    )
    program = Program((X, W), (), (P, a, b), (a.out, b.out))
    assert align_axes(program) is program


def test_slices_repetitions_and_diagonals_are_not_followed() -> None:
    half = compute(Tensor("h", (4, 4), F32), lambda i, j: Load(P.out, (i, j)))
    spread = compute(Tensor("s", (2, 8, 4), F32), lambda _, i, j: Load(P.out, (i, j)))
    square = compute(Tensor("q", (4, 4), F32), lambda i, j: Load(half.out, (j, j)))
    program = Program((X, W), (), (P, half, spread, square), (spread.out, square.out))
    assert align_axes(program) is program


def test_what_is_used_as_a_whole_keeps_its_shape() -> None:
    axis = Axis("l", 3)
    twice = compute(
        Tensor("d", (8, 4), F32), lambda i, j: Binary("add", Load(P.out, (i, j)), const(1.0, F32))
    )
    wide = compute(
        Tensor("e", (1, 8, 4), F32), lambda _, i, j: Unary("exp", Load(twice.out, (i, j)))
    )
    stack = Stack(twice.out, Tensor("all", (3, 8, 4), F32))
    last = Stack(wide.out, Tensor("exps", (3, 1, 8, 4), F32))
    loop = Loop(axis, (), (stack, last), (P, twice, wide))
    program = Program((X, W), (), (loop,), (stack.out, last.out))
    assert align_axes(program) is program


def test_what_is_enlarged_lies_in_the_order_of_its_reader() -> None:
    a = compute(Tensor("a", (8, 6), F32), lambda i, j: Unary("exp", Load(X, (i, j))))

    def near(j: Expr, i: Expr) -> Expr:
        return Load(a.out, (Binary("floordiv", i, idx(2)), j))

    b = compute(Tensor("b", (6, 16), F32), lambda j, i: Binary("add", near(j, i), near(j, i)))
    assert lines(a, b, outputs=(b.out,))[0] == "a[i0:6, i1:8] f32 = exp(x[i1, i0])"
