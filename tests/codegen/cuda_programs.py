"""Small Programs that exercise each method of the CUDA emitter."""

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    add,
    cast,
    const,
    idx,
    mul,
)
from monotile.ir.program import Carry, Loop, Program, Scatter, Stack, Weight, compute

F32 = DType.F32


def times(a: Expr, b: Expr) -> Expr:
    return Binary("mul", cast(a, a.dtype.compute), cast(b, b.dtype.compute))


def linear(rows: int, n: int, k: int, dtype: DType) -> Program:
    """gelu(x W^T + b) + x' with a residual of the result's shape."""
    x, r = Tensor("x", (rows, k), dtype), Tensor("r", (rows, n), dtype)
    w, b = Tensor("w", (n, k), dtype), Tensor("b", (n,), dtype)
    y, z = Tensor("y", (rows, n), dtype), Tensor("z", (rows, n), dtype)
    product = compute(
        y, lambda i, j, q: times(Load(x, (i, q)), Load(w, (j, q))), reduce=(k,), combiner="sum"
    )

    wide = dtype.compute

    def after(i: Axis, j: Axis) -> Expr:
        s = Binary("add", cast(Load(y, (i, j)), wide), cast(Load(b, (j,)), wide))
        half = Binary("mul", s, Const(0.5, wide))
        erf = Unary("erf", Binary("mul", s, Const(0.7071067811865476, wide)))
        gelu = Binary("mul", half, Binary("add", erf, Const(1.0, wide)))
        return Binary("add", gelu, cast(Load(r, (i, j)), wide))

    weights = (Weight(w, ("w",)), Weight(b, ("b",)))
    return Program((x, r), weights, (product, compute(z, after)), (z,))


def pairs(rows: int, columns: int, k: int) -> Program:
    """Dot products too few for a contraction."""
    x, r, y = (
        Tensor("x", (rows, k), F32),
        Tensor("r", (columns, k), F32),
        Tensor("y", (rows, columns), F32),
    )
    dot = compute(
        y, lambda i, j, q: times(Load(x, (i, q)), Load(r, (j, q))), reduce=(k,), combiner="sum"
    )
    return Program((x, r), (), (dot,), (y,))


def softmax(rows: int, columns: int, dtype: DType) -> Program:
    x = Tensor("x", (rows, columns), dtype)
    top, total = Tensor("top", (rows,), F32), Tensor("total", (rows,), F32)
    e, y = Tensor("e", (rows, columns), F32), Tensor("y", (rows, columns), dtype)
    body = (
        compute(top, lambda i, k: cast(Load(x, (i, k)), F32), reduce=(columns,), combiner="max"),
        compute(
            e,
            lambda i, j: Unary("exp", Binary("sub", cast(Load(x, (i, j)), F32), Load(top, (i,)))),
        ),
        compute(total, lambda i, k: Load(e, (i, k)), reduce=(columns,), combiner="sum"),
        compute(y, lambda i, j: Binary("div", Load(e, (i, j)), Load(total, (i,)))),
    )
    return Program((x,), (), body, (y,))


def embedding(tokens: int, words: int, width: int, dtype: DType) -> Program:
    ids = Tensor("ids", (tokens,), DType.I64)
    table, y = Tensor("table", (words, width), dtype), Tensor("y", (tokens, width), dtype)
    body = compute(
        y, lambda i, j: Load(table, (Load(ids, (i,)), j)), origin="model.py:3, in forward: emb(ids)"
    )
    return Program((ids,), (Weight(table, ("table",)),), (body,), (y,))


def convolution(channels: int, out: int, size: int, dtype: DType, groups: int = 1) -> Program:
    """3 x 3 with padding 1: the left factor is a guarded load."""
    x = Tensor("x", (channels, size, size), dtype)
    w = Tensor("w", (out, channels // groups, 3, 3), dtype)
    y = Tensor("y", (out, size, size), dtype)

    def body(o: Axis, h: Axis, v: Axis, c: Axis, p: Axis, q: Axis) -> Expr:
        row, column = add(add(h, p), idx(-1)), add(add(v, q), idx(-1))
        inside: Expr = Const(True, DType.BOOL)
        for at in (row, column):
            inside = Binary("and", inside, Binary("ge", at, idx(0)))
            inside = Binary("and", inside, Binary("lt", at, idx(size)))
        group = Binary("floordiv", o, idx(out // groups))
        channel = add(mul(group, idx(channels // groups)), c) if groups > 1 else c
        # As simplification leaves it: what is selected is cast, not the selection.
        value = Select(inside, cast(Load(x, (channel, row, column)), F32), const(0.0, F32))
        return mul(cast(Load(w, (o, c, p, q)), F32), value)

    step = compute(y, body, reduce=(channels // groups, 3, 3), combiner="sum")
    return Program((x,), (Weight(w, ("w",)),), (step,), (y,))


def reductions(rows: int, columns: int) -> Program:
    x = Tensor("x", (rows, columns), F32)
    best, worst = Tensor("best", (rows,), DType.I64), Tensor("worst", (columns,), DType.I64)
    total, whole = Tensor("total", (columns,), F32), Tensor("whole", (), F32)
    some = Tensor("some", (rows,), DType.BOOL)
    body = (
        compute(best, lambda i, k: Load(x, (i, k)), reduce=(columns,), combiner="argmax"),
        compute(worst, lambda j, k: Load(x, (k, j)), reduce=(rows,), combiner="argmin"),
        compute(total, lambda j, k: Load(x, (k, j)), reduce=(rows,), combiner="sum"),
        compute(whole, lambda a, b: Load(x, (a, b)), reduce=(rows, columns), combiner="sum"),
        compute(
            some,
            lambda i, k: Binary("gt", Load(x, (i, k)), Const(2.0, F32)),
            reduce=(columns,),
            combiner="any",
        ),
    )
    return Program((x,), (), body, tuple(s.out for s in body))


def scatter(rows: int, width: int, updates: int) -> Program:
    x, ids = Tensor("x", (rows, width), F32), Tensor("ids", (updates,), DType.I64)
    v = Tensor("v", (updates, width), F32)
    base, y = Tensor("base", (rows, width), F32), Tensor("y", (rows, width), F32)
    body = (
        compute(base, lambda i, j: Binary("add", Load(x, (i, j)), Const(1.0, F32))),
        Scatter(
            y,
            base,
            (Axis("i0", updates), Axis("i1", width)),
            (Load(ids, (Axis("i0", updates),)), Axis("i1", width)),
            Load(v, (Axis("i0", updates), Axis("i1", width))),
            "sum",
        ),
    )
    return Program((x, ids, v), (), body, (y,))


def recurrence(steps: int, hidden: int, layers: int, dtype: DType) -> Program:
    """h[t+1] = tanh(W_l h[t] + x[t]) in `layers` layers, one Loop in another."""
    x = Tensor("x", (steps, hidden), dtype)
    w = Tensor("w", (layers, hidden, hidden), dtype)
    layer, step = Axis("layer", layers), Axis("step", steps)
    below = Tensor("below", (steps, hidden), dtype)
    zero, h = Tensor("zero", (hidden,), dtype), Tensor("h", (hidden,), dtype)
    s, new = Tensor("s", (hidden,), F32), Tensor("new", (hidden,), dtype)
    last, states = Tensor("last", (hidden,), dtype), Tensor("states", (steps, hidden), dtype)
    out = Tensor("out", (steps, hidden), dtype)
    inner = Loop(
        step,
        (Carry(zero, h, new, last),),
        (Stack(new, states),),
        (
            compute(
                s,
                lambda j, k: times(Load(w, (layer, j, k)), Load(h, (k,))),
                reduce=(hidden,),
                combiner="sum",
            ),
            compute(
                new,
                lambda j: Unary(
                    "tanh", Binary("add", Load(s, (j,)), cast(Load(below, (step, j)), F32))
                ),
            ),
        ),
    )
    outer = Loop(layer, (Carry(x, below, states, out),), (), (inner,))
    zeros = compute(zero, lambda j: const(0.0, dtype))
    return Program(
        (x,), (Weight(w, tuple(f"w{k}" for k in range(layers)), 1),), (zeros, outer), (out,)
    )


def transposed(rows: int, columns: int, dtype: DType) -> Program:
    """A product whose sides lie along m and n, and whose left side is computed."""
    x, w = Tensor("x", (32, rows), dtype), Tensor("w", (32, columns), dtype)
    y = Tensor("y", (rows, columns), dtype)

    def body(i: Axis, j: Axis, k: Axis) -> Expr:
        left = Cast(Unary("tanh", cast(Load(x, (k, i)), F32)), dtype)
        return times(left, Load(w, (k, j)))

    return Program(
        (x,), (Weight(w, ("w",)),), (compute(y, body, reduce=(32,), combiner="sum"),), (y,)
    )


def picked() -> Program:
    """Rows by number, but of one of them its first is updated: the number is read under a condition, and for an index."""
    x, rows, p = Tensor("x", (7, 7), F32), Tensor("rows", (2,), DType.I64), Tensor("p", (1,), F32)
    new = compute(
        Tensor("new", (1,), F32),
        lambda i: Binary("add", Load(x, (idx(5), i)), Load(p, (i,))),
    )

    def body(i: Axis, j: Axis) -> Expr:
        row = Load(rows, (j,))
        first = Binary("eq", row, const(0, DType.I64))
        updated = Select(first, Load(new.out, (idx(0),)), Load(x, (idx(5), row)))
        return Select(Binary("eq", i, idx(5)), updated, Load(x, (i, row)))

    y = compute(Tensor("y", (7, 2), F32), body)
    return Program((x, rows, p), (), (new, y), (y.out,))


def every() -> dict[str, Program]:
    return {
        "linear_f16": linear(64, 96, 256, DType.F16),
        "linear_bf16_ragged": linear(37, 50, 40, DType.BF16),
        "linear_f32": linear(64, 96, 128, F32),
        "linear_f32_ragged": linear(33, 31, 17, F32),
        "linear_f64": linear(16, 16, 16, DType.F64),
        "softmax_f16": softmax(13, 256, DType.F16),
        "softmax_ragged": softmax(7, 33, F32),
        "embedding": embedding(128, 1000, 64, DType.F16),
        "convolution_f16": convolution(16, 32, 14, DType.F16),
        "convolution_f32": convolution(3, 8, 9, F32),
        "convolution_grouped_f16": convolution(16, 80, 10, DType.F16, groups=4),
        "convolution_grouped_few_f16": convolution(16, 16, 10, DType.F16, groups=4),
        "convolution_grouped_f32": convolution(24, 24, 9, F32, groups=4),
        "reductions": reductions(50, 300),
        "reductions_dealt": pairs(500, 3, 32),
        "scatter": scatter(10, 8, 5),
        "recurrence_f32": recurrence(7, 64, 3, F32),
        "transposed_f16": transposed(40, 72, DType.F16),
        "transposed_f32": transposed(40, 70, F32),
        "picked": picked(),
    }
