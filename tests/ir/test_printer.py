"""The text of a Program, whole and in detail."""

from collections.abc import Callable

import pytest

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, Select, Tensor, Unary, const, idx
from monotile.ir.printer import show, show_expr
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Loop,
    Program,
    Scatter,
    Stack,
    Weight,
    compute,
)

F16, F32, I64, BOOL = DType.F16, DType.F32, DType.I64, DType.BOOL
A, B = Axis("i0", 4), Axis("i1", 8)


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (Binary("sub", A, Binary("sub", B, idx(1))), "i0 - (i1 - 1)"),
        (Binary("sub", Binary("sub", A, B), idx(1)), "i0 - i1 - 1"),
        (Binary("mul", Binary("add", A, B), idx(-2)), "(i0 + i1) * (-2)"),
        (Binary("floordiv", A, Binary("mod", B, idx(2))), "i0 // (i1 % 2)"),
        (Unary("neg", Binary("add", A, B)), "-(i0 + i1)"),
        (Binary("mul", Unary("neg", A), B), "-i0 * i1"),
        (Binary("max", const(1.0, F16), const(0.5, F16)), "max(1.0f16, 0.5f16)"),
        (Binary("lt", const(float("inf"), F32), const(2.0, F32)), "inf < 2.0"),
        (
            Select(const(True, BOOL), A, Cast(const(3, DType.I32), I64)),
            "where(true, i0, i64(3i32))",
        ),
        (Binary("and", Unary("not", const(False, BOOL)), const(True, BOOL)), "not false and true"),
        (Binary("eq", Binary("eq", A, B), const(True, BOOL)), "(i0 == i1) == true"),
    ],
)
def test_expressions(e: Expr, text: str) -> None:
    assert show_expr(e) == text


def example() -> Program:
    """One of everything."""
    x, w = Tensor("x", (4, 8), F16), Tensor("w", (3, 8, 8), F16)
    ids, flag = Tensor("ids", (4,), I64), Tensor("flag", (), BOOL)
    layer = Axis("layer", 3)
    h, h1 = Tensor("h", (4, 8), F16), Tensor("h1", (4, 8), F16)
    product = compute(
        Tensor("product", (4, 8), F16),
        lambda i, j, r: Binary(
            "mul", Cast(Load(h, (i, r)), F32), Cast(Load(w, (layer, j, r)), F32)
        ),
        reduce=(8,),
        combiner="sum",
        origin="model.py:7, in forward: x = self.layers[i](x)",
    )
    relu = compute(
        h1, lambda i, j: Binary("max", Cast(Load(product.out, (i, j)), F32), const(0.0, F32))
    )
    final, history = Tensor("final", (4, 8), F16), Tensor("history", (3, 4, 8), F16)
    loop = Loop(layer, (Carry(x, h, h1, final),), (Stack(h1, history),), (product, relu))
    i = Axis("i0", 4)
    scatter = Scatter(
        Tensor("moved", (4, 8), F16), final, (i,), (Load(ids, (i,)), idx(0)), const(1.0, F16), "max"
    )
    a, b, y = (Tensor(k, (), F16) for k in ("a", "b", "y"))
    first = compute(a, lambda: Load(scatter.out, (idx(0), idx(0))))
    zero = compute(b, lambda: const(0.0, F16))
    branch = Branch(flag, (first,), (zero,), (BranchOut(a, b, y),))
    weight = Weight(w, ("layers.0.w", "layers.1.w", "layers.2.w"), 1)
    return Program((x, ids, flag), (weight,), (loop, scatter, branch), (y, history))


def test_program(golden: Callable[[str, str], None]) -> None:
    golden("printer.txt", show(example()))
