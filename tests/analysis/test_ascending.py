"""Integers that grow along an axis."""

import numpy as np
import pytest

from monotile.analysis.ascending import ascending
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, Tensor, add, cast, idx
from monotile.ir.program import Program, compute

T = Axis("i0", 12)
ENDS = Tensor("ends", (4,), DType.I64)
GROUP = compute(
    Tensor("group", (12,), DType.I64),
    lambda t, g: cast(Binary("le", Load(ENDS, (g,)), t), DType.I64),
    reduce=(4,),
    combiner="sum",
)
MADE = {"group": GROUP}
GROWS: dict[str, Expr] = {
    "axis": add(T, idx(-3)),
    "whatever of others": Load(ENDS, (Axis("i1", 4),)),
    "ends passed": Binary("min", Load(GROUP.out, (T,)), idx(3)),
    "in blocks": Binary("floordiv", Load(GROUP.out, (T,)), idx(2)),
}
NOT: dict[str, Expr] = {
    "data": Load(Tensor("x", (12,), DType.I64), (T,)),
    "wraps": Binary("mod", T, idx(4)),
    "ends to come": cast(Binary("lt", T, Load(ENDS, (idx(0),))), DType.I64),
    "narrow": Cast(Cast(Load(GROUP.out, (T,)), DType.I32), DType.I64),  # which may wrap
    "backward": Load(GROUP.out, (Binary("sub", idx(11), T),)),
}


@pytest.mark.parametrize("name", GROWS)
def test_what_grows(name: str) -> None:
    e = GROWS[name]
    assert ascending(e, T, MADE)
    out = compute(Tensor("out", (12, 4), DType.I64), lambda *_: e)
    program = Program((ENDS,), (), (GROUP, out), (out.out,))
    (found,) = evaluate(program, {"ends": np.array([2, 2, 7, 30])})
    assert (np.diff(found, axis=0) >= 0).all()


@pytest.mark.parametrize("name", NOT)
def test_what_may_not(name: str) -> None:
    assert not ascending(NOT[name], T, MADE)
