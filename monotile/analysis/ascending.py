"""Monotonicity of integer expressions: whether values never decrease along an axis, as for rows sorted by their choice."""

from collections.abc import Mapping

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Const, Expr, Load, axes_of
from monotile.ir.program import Compute


def ascending(e: Expr, axis: Axis, made: Mapping[str, Compute]) -> bool:
    """Whether `e` is never less than at the previous point of `axis`; False where that is not proven. made: maps names of tensors that
    it may load to their Computes."""

    def grows(x: Expr) -> bool:
        return ascending(x, axis, made)

    if axis not in axes_of(e):
        return True
    match e:
        case Axis():
            return True
        case Cast(Binary("lt" | "le", a, b), _):
            return axis not in axes_of(a) and grows(b)
        case Cast(Binary("gt" | "ge", a, b), _):
            return axis not in axes_of(b) and grows(a)
        case Cast(x, dtype):
            return x.dtype.is_int and dtype is DType.I64 and grows(x)
        case Binary("add" | "min" | "max", a, b):
            return grows(a) and grows(b)
        case Binary("mul" | "floordiv", a, Const(int(n))):
            return n > 0 and grows(a)
        case Load(t, index):
            c = made.get(t.name)
            moving = [k for k, i in enumerate(index) if axis in axes_of(i)]
            if c is None or c.combiner not in (None, "sum", "max", "min") or len(moving) != 1:
                return False
            return grows(index[moving[0]]) and ascending(c.body, c.axes[moving[0]], made)
        case _:
            return False
