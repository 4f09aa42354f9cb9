"""Data-dependent sizes as expressions of the Program, converted from PyTorch's expressions over their symbols."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import sympy

from monotile.errors import CaptureError
from monotile.frontends.torch.sizes.size import Size
from monotile.ir.expr import Expr, Select, binary, idx


def is_data_dependent(n: int, sizes: Collection[str]) -> bool:
    """Whether a size is data-dependent. sizes: the data-dependent symbols."""
    return isinstance(n, Size) and any(str(x) in sizes for x in n.expr.free_symbols)


_OPERATIONS = {"Add": "add", "Mul": "mul", "FloorDiv": "floordiv", "Mod": "mod", "PythonMod": "mod", "Max": "max", "Min": "min"}  # fmt: skip


_COMPARISONS = {"Equality": "eq", "Unequality": "ne", "StrictLessThan": "lt", "LessThan": "le", "StrictGreaterThan": "gt", "GreaterThan": "ge"}  # fmt: skip


def computed(e: Any, symbol: Callable[[str], Expr]) -> Expr:
    """An expression over symbols as an expression of the Program."""
    if e.is_Symbol:
        return symbol(str(e))
    if isinstance(e, sympy.Integer):
        return idx(int(e))
    if isinstance(e, sympy.Piecewise):
        return _either(e, symbol)
    op = _OPERATIONS.get(type(e).__name__)
    if op is None:
        raise CaptureError(f"the size {e} depends on data")
    return functools.reduce(lambda a, b: binary(op, a, b), (computed(x, symbol) for x in e.args))


def _either(e: sympy.Piecewise, symbol: Callable[[str], Expr]) -> Expr:
    """The value of the first case whose condition holds; that of the last always holds."""
    *cases, (last, _) = (tuple(x.args) for x in e.args)
    found = computed(last, symbol)
    for value, test in reversed(cases):
        op = _COMPARISONS.get(type(test).__name__)
        if op is None:
            raise CaptureError(f"the size {e} depends on data")
        holds = binary(op, *(computed(x, symbol) for x in test.args))
        found = Select(holds, computed(value, symbol), found)
    return found
