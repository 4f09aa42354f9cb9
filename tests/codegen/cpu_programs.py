"""Small Programs that exercise one method each."""

from collections.abc import Sequence

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
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
from monotile.ir.program import Carry, Compute, Loop, Program, Scatter, Stack, Weight, compute


def linear(
    m: int, n: int, k: int, dtype: DType = DType.F32, *, left: str = "k", right: str = "k"
) -> Program:
    """z = gelu-like(x w + b). left, right: "k" or "mn", the direction in which the sides lie contiguous;
    "none": the side is computed."""
    x = Tensor("x", (k, m) if left == "mn" else (m, k), dtype)
    w = Tensor("w", (k, n) if right == "mn" else (n, k), dtype)
    b = Tensor("b", (n,), dtype)
    y, z = Tensor("y", (m, n), dtype), Tensor("z", (m, n), dtype)
    wide = dtype.compute

    def side(t: Tensor, major: str, i: Expr, r: Expr) -> Expr:
        value = cast(Load(t, (r, i) if major == "mn" else (i, r)), wide)
        return Unary("neg", value) if major == "none" else value

    def activation(i: Expr, j: Expr) -> Expr:
        v = Binary("add", cast(Load(y, (i, j)), wide), cast(Load(b, (j,)), wide))
        return Binary("mul", v, Unary("erf", v))

    product = compute(
        y,
        lambda i, j, r: Binary("mul", side(x, left, i, r), side(w, right, j, r)),
        reduce=(k,),
        combiner="sum",
    )
    weights = (Weight(w, ("w",)), Weight(b, ("b",)))
    return Program((x,), weights, (product, compute(z, activation)), (z,))


def convolution() -> Program:
    """A padded 3 x 3 convolution: a product whose left side is gathered from guarded loads."""
    x = Tensor("x", (2, 3, 9, 10), DType.F32)
    w = Tensor("w", (8, 3, 3, 3), DType.F32)
    y = Tensor("y", (2, 8, 9, 10), DType.F32)

    def body(b: Expr, o: Expr, i: Expr, j: Expr, c: Expr, di: Expr, dj: Expr) -> Expr:
        row, column = add(add(i, di), idx(-1)), add(add(j, dj), idx(-1))
        inside: Expr = Binary("and", Binary("le", idx(0), row), Binary("lt", row, idx(9)))
        for test in (Binary("le", idx(0), column), Binary("lt", column, idx(10))):
            inside = Binary("and", inside, test)
        pixel = Select(inside, Load(x, (b, c, row, column)), const(0.0, DType.F32))
        return Binary("mul", pixel, Load(w, (o, c, di, dj)))

    product = compute(y, body, reduce=(3, 3, 3), combiner="sum")
    return Program((x,), (Weight(w, ("w",)),), (product,), (y,))


Case = tuple[tuple[int, ...], tuple[int, ...]]  # shape, and the dimensions that are reduced


def reductions(combiner: str, dtypes: Sequence[DType], cases: Sequence[Case]) -> Program:
    """One reduction of an input of its own for every dtype and case."""
    inputs: list[Tensor] = []
    body: list[Compute] = []
    for dtype in dtypes:
        for shape, over in cases:
            x = Tensor(f"x{len(inputs)}", shape, dtype)
            inputs.append(x)
            body.append(_reduction(x, combiner, over))
    return Program(tuple(inputs), (), tuple(body), tuple(s.out for s in body))


def _reduction(x: Tensor, combiner: str, over: tuple[int, ...]) -> Compute:
    kept = [d for d in range(len(x.shape)) if d not in over]
    position = combiner in ("argmax", "argmin")
    dtype = DType.I64 if position else x.dtype
    out = Tensor(x.name.replace("x", "y"), tuple(x.shape[d] for d in kept), dtype)

    def body(*axes: Expr) -> Expr:
        order = [*kept, *over]
        index = tuple(axes[order.index(d)] for d in range(len(x.shape)))
        return cast(Load(x, index), x.dtype.compute)

    return compute(out, body, reduce=tuple(x.shape[d] for d in over), combiner=combiner)


def gather() -> Program:
    """An embedding: rows of a table at positions that the input holds."""
    ids = Tensor("ids", (5,), DType.I64)
    table = Tensor("table", (11, 32), DType.F16)
    y = Tensor("y", (5, 32), DType.F32)
    s = compute(y, lambda i, j: cast(Load(table, (Load(ids, (i,)), j)), DType.F32), origin="m.py:7")
    return Program((ids,), (Weight(table, ("table",)),), (s,), (y,))


def transposed() -> Program:
    """Flattened dimensions that memory does not run straight along."""
    x = Tensor("x", (6, 5, 7, 8), DType.F32)
    y = Tensor("y", (5, 6, 8, 7), DType.F32)
    s = compute(y, lambda i, j, k, m: mul(Load(x, (j, i, m, k)), const(2.0, DType.F32)))
    return Program((x,), (), (s,), (y,))


def layers(count: int = 3) -> Program:
    """A Loop over layers that carries a value, reads its weights from a table and stacks a result."""
    h0 = Tensor("h0", (4, 16), DType.F32)
    w = Tensor("w", (count, 16, 16), DType.F32)
    h, y, last = (Tensor(name, (4, 16), DType.F32) for name in ("h", "y", "last"))
    stack = Tensor("stack", (count, 4, 16), DType.F32)
    axis = Axis("layer", count)
    step = compute(
        y,
        lambda i, j, r: Binary("mul", Load(h, (i, r)), Load(w, (axis, j, r))),
        reduce=(16,),
        combiner="sum",
    )
    after = Tensor("after", (4, 16), DType.F32)
    squash = compute(after, lambda i, j: Unary("tanh", Load(y, (i, j))))
    loop = Loop(axis, (Carry(h0, h, after, last),), (Stack(after, stack),), (step, squash))
    weights = (Weight(w, tuple(f"w{k}" for k in range(count)), 1),)
    out = Tensor("out", (4, 16), DType.F32)
    first = Tensor("first", (4, 16), DType.F32)
    copy = compute(out, lambda i, j: Unary("neg", Load(last, (i, j))))
    pick = compute(first, lambda i, j: Load(stack, (idx(0), i, j)))
    return Program((h0,), weights, (loop, copy, pick), (out, first))


def append() -> Program:
    """A Scatter of rows at positions that the input holds, added up where they meet."""
    rows = Tensor("rows", (6,), DType.I64)
    x = Tensor("x", (6, 4), DType.F32)
    zeros, y, z = (Tensor(name, (5, 4), DType.F32) for name in ("zeros", "y", "z"))
    axes = (Axis("i0", 6), Axis("i1", 4))
    clear = compute(zeros, lambda i, j: const(1.0, DType.F32))
    put = Scatter(y, zeros, axes, (Load(rows, (axes[0],)), axes[1]), Load(x, axes), "sum", "m.py:9")
    double = compute(z, lambda i, j: Binary("mul", Load(y, (i, j)), const(2.0, DType.F32)))
    return Program((rows, x), (), (clear, put, double), (z,))


def hashed() -> Program:
    """Index arithmetic that needs 64 bits."""
    y = Tensor("y", (9,), DType.I64)
    big = idx(3_000_000_019)
    s = compute(y, lambda i: Binary("mod", add(mul(i, big), idx(12345)), idx(1_000_003)))
    return Program((), (), (s,), (y,))


def between() -> Program:
    """x + 1 - 1 in two statements of a 16-bit type."""
    x, y, z = (Tensor(name, (8,), DType.BF16) for name in "xyz")
    one = const(1.0, DType.F32)
    up = compute(y, lambda i: Binary("add", cast(Load(x, (i,)), DType.F32), one))
    down = compute(z, lambda i: Binary("sub", cast(Load(y, (i,)), DType.F32), one))
    return Program((x,), (), (up, down), (z,))
