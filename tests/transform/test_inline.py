"""What is inlined where, and what is not."""

from collections.abc import Callable

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, Select, Tensor, Unary, cast, const, idx
from monotile.ir.printer import show_statement
from monotile.ir.program import Carry, Compute, Loop, Program, Scatter, Stack, Statement, compute
from monotile.ir.verify import verify
from monotile.transform.fusion.inline import BODY_NODES, inline_pointwise, inline_views
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.simplify import simplify

F16, F32, I64, BOOL = DType.F16, DType.F32, DType.I64, DType.BOOL
X = Tensor("x", (8, 6), F32)
W = Tensor("w", (6, 6), F32)


def program(*body: Statement, outputs: tuple[Tensor, ...] = ()) -> Program:
    last = body[-1]
    assert isinstance(last, Compute | Scatter) or outputs
    return Program((X, W), (), body, outputs or (last.out,))  # type: ignore[union-attr]


def views(p: Program) -> list[str]:
    new = eliminate_dead_code(inline_views(p))
    verify(new)
    return [line for s in new.body for line in show_statement(s)]


def pointwise(p: Program) -> list[str]:
    new = eliminate_dead_code(simplify(inline_pointwise(p), Options()))
    verify(new)
    return [line for s in new.body for line in show_statement(s)]


def unary(name: str, op: str, x: Tensor) -> Compute:
    return compute(Tensor(name, x.shape, x.dtype), lambda *i: Unary(op, Load(x, i)))


def binary(name: str, op: str, x: Tensor, y: Tensor) -> Compute:
    return compute(Tensor(name, x.shape, x.dtype), lambda *i: Binary(op, Load(x, i), Load(y, i)))


def view(
    name: str, x: Tensor, shape: tuple[int, ...], index: Callable[..., tuple[Expr, ...]]
) -> Compute:
    return compute(Tensor(name, shape, x.dtype), lambda *i: Load(x, index(*i)))


def total(name: str, x: Tensor) -> Compute:
    rows, columns = x.shape
    return compute(
        Tensor(name, (rows,), x.dtype),
        lambda i, r: Load(x, (i, r)),
        reduce=(columns,),
        combiner="sum",
    )


def product(name: str, x: Tensor, w: Tensor = W) -> Compute:
    return compute(
        Tensor(name, (x.shape[0], w.shape[0]), F32),
        lambda i, j, r: Binary("mul", Load(x, (i, r)), Load(w, (j, r))),
        reduce=(6,),
        combiner="sum",
    )


def test_views_of_views_compose_and_settle() -> None:
    flat = view(
        "flat", X, (48,), lambda i: (Binary("floordiv", i, idx(6)), Binary("mod", i, idx(6)))
    )
    split = view(
        "split",
        flat.out,
        (8, 2, 3),
        lambda i, j, k: (
            Binary("add", Binary("mul", i, idx(6)), Binary("add", Binary("mul", j, idx(3)), k)),
        ),
    )
    use = unary("y", "exp", split.out)
    assert views(program(flat, split, use)) == ["y[i0:8, i1:2, i2:3] f32 = exp(x[i0, i1 * 3 + i2])"]


def test_an_output_that_is_a_view_stays() -> None:
    flip = view("t", X, (6, 8), lambda i, j: (j, i))
    use = unary("y", "exp", flip.out)
    assert views(program(flip, use, outputs=(flip.out, use.out))) == [
        "t[i0:6, i1:8] f32 = x[i1, i0]",
        "y[i0:6, i1:8] f32 = exp(x[i1, i0])",
    ]


def test_a_cast_that_widens_is_a_view_and_one_that_rounds_is_not() -> None:
    half = Tensor("h", (8,), F16)
    wide = compute(Tensor("wide", (8,), F32), lambda i: Load(half, (i,)))
    narrow = compute(Tensor("narrow", (8,), F16), lambda i: Load(X, (i, idx(0))))
    use = compute(
        Tensor("y", (8,), F32),
        lambda i: Binary("add", Load(wide.out, (i,)), Cast(Load(narrow.out, (i,)), F32)),
    )
    p = Program((X, half), (), (wide, narrow, use), (use.out,))
    assert views(p) == ["narrow[i0:8] f16 = x[i0, 0]", "y[i0:8] f32 = f32(h[i0]) + f32(narrow[i0])"]


def test_views_and_literals_go_into_loops_and_scatters() -> None:
    row = view("row", X, (6,), lambda i: (idx(3), i))
    one = compute(Tensor("one", (), F32), lambda: const(1.0, F32))
    zeros = compute(Tensor("zeros", (6,), F32), lambda _: const(0.0, F32))
    axis, i0 = Axis("l", 4), Axis("i0", 6)
    param, result, out = (Tensor(k, (6,), F32) for k in ("c", "d", "e"))
    step = compute(
        result,
        lambda i: Binary(
            "add", Load(param, (i,)), Binary("mul", Load(row.out, (i,)), Load(one.out, ()))
        ),
    )
    loop = Loop(axis, (Carry(zeros.out, param, result, out),), (), (step,))
    put = Scatter(Tensor("put", (6,), F32), out, (i0,), (i0,), Load(row.out, (i0,)))
    assert views(program(row, one, zeros, loop, put)) == [
        "zeros[i0:6] f32 = 0.0",
        "loop l:4:",
        "  carry c: f32[6] = zeros then d",
        "  d[i0:6] f32 = c[i0] + x[3, i0] * 1.0",
        "  give e = d",
        "put f32[6] = e with [i0:6] [i0] = x[3, i0]",
    ]


def test_a_slice_by_the_loop_goes_into_its_readers() -> None:
    axis = Axis("l", 8)
    row = compute(Tensor("row", (6,), F32), lambda i: Load(X, (axis, i)))
    use = unary("y", "exp", row.out)
    loop = Loop(axis, (), (Stack(use.out, Tensor("all", (8, 6), F32)),), (row, use))
    assert "  y[i0:6] f32 = exp(x[l, i0])" in views(program(loop, outputs=(loop.stacked[0].out,)))


def test_chains_of_pointwise_become_one() -> None:
    a = binary("a", "add", X, X)
    b = unary("b", "tanh", a.out)
    c = binary("c", "mul", b.out, X)
    assert pointwise(program(a, b, c)) == [
        "c[i0:8, i1:6] f32 = tanh(x[i0, i1] + x[i0, i1]) * x[i0, i1]"
    ]


def test_into_a_reduction_that_reads_each_element_once() -> None:
    e = unary("e", "exp", X)
    assert pointwise(program(e, total("s", e.out))) == ["s[i0:8] f32 = sum(r0:6) exp(x[i0, r0])"]


def test_expensive_work_is_not_repeated() -> None:
    e = unary("e", "exp", X)
    s = total("s", e.out)
    y = compute(
        Tensor("y", (8, 6), F32), lambda i, j: Binary("div", Load(e.out, (i, j)), Load(s.out, (i,)))
    )
    lines = pointwise(program(e, s, y))
    assert [line.split("[")[0] for line in lines] == ["e", "s", "y"]


def test_cheap_work_is_repeated_where_it_saves_a_tensor() -> None:
    mean = total("mean", X)
    centred = compute(
        Tensor("centred", (8, 6), F32),
        lambda i, j: Binary("sub", Load(X, (i, j)), Load(mean.out, (i,))),
    )
    variance = compute(
        Tensor("variance", (8,), F32),
        lambda i, r: Binary("mul", Load(centred.out, (i, r)), Load(centred.out, (i, r))),
        reduce=(6,),
        combiner="sum",
    )
    y = compute(
        Tensor("y", (8, 6), F32),
        lambda i, j: Binary("mul", Load(centred.out, (i, j)), Load(variance.out, (i,))),
    )
    lines = pointwise(program(mean, centred, variance, y))
    assert [line.split("[")[0] for line in lines] == ["mean", "variance", "y"]


def test_the_epilogue_of_a_reduction_with_several_readers_stays_one() -> None:
    p = product("p", X)
    shifted = compute(
        Tensor("shifted", (8, 6), F32),
        lambda i, j: Binary("add", Load(p.out, (i, j)), Load(W, (idx(0), j))),
    )
    a, b = unary("a", "exp", shifted.out), unary("b", "tanh", shifted.out)
    lines = pointwise(program(p, shifted, a, b, outputs=(a.out, b.out)))
    assert [line.split("[")[0] for line in lines] == ["p", "shifted", "a", "b"]


def test_a_contraction_takes_paddings_and_masks_but_no_arithmetic() -> None:
    pad = compute(
        Tensor("pad", (9, 6), F32),
        lambda i, j: Select(Binary("lt", i, idx(8)), Load(X, (i, j)), const(0.0, F32)),
    )
    causal = compute(
        Tensor("causal", (6, 6), F32),
        lambda i, j: Select(Binary("ge", i, j), const(1.0, F32), const(0.0, F32)),
    )
    padded = pointwise(program(pad, causal, product("p", pad.out, causal.out)))
    assert len(padded) == 1
    assert "where(i0 < 8, x[i0, r0], 0.0)" in padded[0]
    relu = compute(
        Tensor("relu", (8, 6), F32), lambda i, j: Binary("max", Load(X, (i, j)), const(0.0, F32))
    )
    assert len(pointwise(program(relu, product("q", relu.out)))) == 2


def test_what_is_stored_anyway_is_read() -> None:
    a = unary("a", "exp", X)
    b = unary("b", "tanh", a.out)
    assert len(pointwise(program(a, b, outputs=(a.out, b.out)))) == 2


def test_work_outside_a_loop_stays_outside() -> None:
    a = unary("a", "exp", X)
    axis = Axis("l", 3)
    y = compute(
        Tensor("y", (8, 6), F32), lambda i, j: Binary("add", Load(a.out, (i, j)), Cast(axis, F32))
    )
    loop = Loop(axis, (), (Stack(y.out, Tensor("all", (3, 8, 6), F32)),), (y,))
    p = program(a, loop, outputs=(loop.stacked[0].out,))
    assert inline_pointwise(p) is p


def test_what_is_read_where_data_says_is_not_read_anew_in_every_layer() -> None:
    """T5's table of biases, by distances, of which all layers add the same."""
    where, few = Tensor("where", (8, 6), I64), Tensor("few", (4,), F32)
    table = compute(Tensor("table", (8, 6), F32), lambda i, j: Load(few, (Load(where, (i, j)),)))

    def found(layers: int) -> list[str]:
        axis = Axis("l", layers)
        y = compute(
            Tensor("y", (8, 6), F32),
            lambda i, j: Binary("add", Load(table.out, (i, j)), Cast(axis, F32)),
        )
        loop = Loop(axis, (), (Stack(y.out, Tensor("all", (layers, 8, 6), F32)),), (y,))
        new = inline_pointwise(Program((few, where), (), (table, loop), (loop.stacked[0].out,)))
        return [line.split("[")[0].strip() for s in new.body for line in show_statement(s)]

    assert "table" in found(12)
    assert "table" not in found(2)


def test_a_product_takes_a_row_that_a_scalar_chooses_in_its_own_loop() -> None:
    place = Tensor("place", (), I64)
    row = compute(Tensor("row", (6,), F32), lambda j: Load(X, (Load(place, ()), j)))
    times = compute(
        Tensor("y", (6,), F32),
        lambda i, r: Binary("mul", Load(row.out, (r,)), Load(W, (r, i))),
        reduce=(6,),
        combiner="sum",
    )
    once = Program((X, W, place), (), (row, times), (times.out,))
    assert [line.split("[")[0] for line in pointwise(once)] == ["y"]
    loop = Loop(Axis("l", 3), (), (Stack(times.out, Tensor("all", (3, 6), F32)),), (times,))
    outside = Program((X, W, place), (), (row, loop), (loop.stacked[0].out,))
    assert inline_pointwise(outside) is outside


def test_bodies_do_not_blow_up() -> None:
    """x + x[other], forty times: each step would double the expression."""
    body: list[Compute] = []
    x = X
    for k in range(40):
        s = compute(
            Tensor(f"t{k}", (8, 6), F32),
            lambda i, j, x=x: Binary(
                "add", Load(x, (i, j)), Load(x, (Binary("sub", idx(7), i), j))
            ),
        )
        body.append(s)
        x = s.out
    new = eliminate_dead_code(inline_pointwise(program(*body)))
    verify(new)
    longest = max(len(line) for s in new.body for line in show_statement(s))
    assert longest < 20 * BODY_NODES


def test_readers_that_become_one_take_their_source_in() -> None:
    """x (1 + tanh(x)) of a biased product: x has two readers at first."""
    p = product("p", X)
    biased = compute(
        Tensor("biased", (8, 6), F32),
        lambda i, j: Binary("add", Load(p.out, (i, j)), Load(W, (idx(0), j))),
    )
    t = unary("t", "tanh", biased.out)
    y = binary("y", "mul", biased.out, t.out)
    lines = pointwise(program(p, biased, t, y))
    assert [line.split("[")[0] for line in lines] == ["p", "y"]


def test_a_sum_of_products_follows_the_last_one() -> None:
    """What follows the earlier ones ends as 16 bits; in the last one's epilogue they would be stored and read as 32. Of one width, nothing is gained."""

    def names(dtype: DType) -> list[str]:
        def after(name: str, op: str, x: Compute) -> Compute:
            out = Tensor(name, (8,), dtype)
            return compute(out, lambda i: cast(Unary(op, Load(x.out, (i,))), dtype))

        def added(name: str, x: Compute, y: Compute) -> Compute:
            out = Tensor(name, (8,), dtype)
            return compute(out, lambda i: Binary("add", Load(x.out, (i,)), Load(y.out, (i,))))

        sums = [
            compute(Tensor(n, (8,), F32), lambda i, r: Load(X, (i, r)), reduce=(6,), combiner="sum")
            for n in "abc"
        ]
        first, second, third = (after(f"{s.out.name}1", "tanh", s) for s in sums)
        both = added("both", first, second)
        last = added("last", both, third)
        a, b, c = sums
        lines = pointwise(program(a, first, b, second, both, c, third, last))
        return [line.split("[")[0] for line in lines]

    assert names(F16) == ["a", "a1", "b", "both", "c", "last"]
    assert names(F32) == ["a", "b", "c", "last"]


def test_what_ends_a_product_is_stored_for_a_reduction_if_it_is_narrower() -> None:
    """relu(a product) for its largest values: stored as 16 bits instead of 32. Of one width, the reduction takes it in."""

    def names(dtype: DType) -> list[str]:
        p = product("p", X)
        relu = compute(
            Tensor("relu", (8, 6), dtype),
            lambda i, j: cast(Binary("max", Load(p.out, (i, j)), const(0.0, F32)), dtype),
        )
        top = compute(
            Tensor("top", (4, 6), dtype),
            lambda i, j, r: Load(relu.out, (Binary("add", Binary("mul", i, idx(2)), r), j)),
            reduce=(2,),
            combiner="max",
        )
        return [line.split("[")[0] for line in pointwise(program(p, relu, top))]

    assert names(F16) == ["p", "relu", "top"]
    assert names(F32) == ["p", "top"]
