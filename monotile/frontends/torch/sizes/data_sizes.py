"""Data-dependent sizes as expressions of the Program, converted from PyTorch's expressions over their symbols."""

import ast
import functools
from collections.abc import Callable, Collection
from typing import Any

import sympy

from monotile.errors import CaptureError
from monotile.frontends.torch.sizes.ranges import text_of
from monotile.frontends.torch.sizes.size import Size
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Select, Unary, binary, cast, const, idx, mul


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
    if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
        return functools.reduce(mul, int(e.exp) * [computed(e.base, symbol)])
    op = _OPERATIONS.get(type(e).__name__)
    if op is None:  # such as a fraction, rounded
        text = text_of(e)
        return cast(_value(ast.parse(text, mode="eval").body, text, symbol), DType.I64)
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


def computed_number(
    text: str, sizes: Collection[str], symbol: Callable[[str], Expr]
) -> Expr | None:
    """A number that depends on data-dependent sizes as an expression of float64; None if it depends on others alone. text: a Python expression over the
    symbols' names. Raises CaptureError for functions that have no expression."""
    parsed = ast.parse(text, mode="eval").body
    if not any(isinstance(x, ast.Name) and x.id in sizes for x in ast.walk(parsed)):
        return None
    return cast(_value(parsed, text, symbol), DType.F64)


def _value(x: ast.expr, text: str, symbol: Callable[[str], Expr]) -> Expr:
    """An int64 or a float64, as in Python."""
    match x:
        case ast.Name(name):
            return symbol(name)
        case ast.Constant(int(n)):
            return idx(n)
        case ast.Constant(float(n)):
            return const(n, DType.F64)
        case ast.UnaryOp(ast.USub(), of):
            found = _value(of, text, symbol)
            return binary("sub", const(0, found.dtype), found)
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            a, b = (_value(y, text, symbol) for y in (left, right))
            whole = a.dtype is b.dtype is DType.I64 and not isinstance(op, ast.Div)
            kind = DType.I64 if whole else DType.F64
            return binary(_BINARY[type(op)], cast(a, kind), cast(b, kind))
        case ast.BinOp(left, ast.Pow(), right):
            return binary("pow", *(cast(_value(y, text, symbol), DType.F64) for y in (left, right)))
        case ast.Call(ast.Name("float"), [of]):
            return cast(_value(of, text, symbol), DType.F64)
        case ast.Call(ast.Name("max" | "min" as end), given):
            found = [_value(y, text, symbol) for y in given]
            kind = DType.I64 if {y.dtype for y in found} == {DType.I64} else DType.F64
            return functools.reduce(lambda a, b: binary(end, a, b), (cast(y, kind) for y in found))
        case ast.Call(
            ast.Attribute(ast.Name("math"), "floor" | "ceil" | "trunc" as how), [of]
        ) | ast.Call(ast.Name("round" as how), [of]):
            return cast(Unary(how, cast(_value(of, text, symbol), DType.F64)), DType.I64)
        case ast.Call(ast.Attribute(ast.Name("math"), "sqrt"), [of]):
            return Unary("sqrt", cast(_value(of, text, symbol), DType.F64))
        case _:
            raise CaptureError(f"the size or number {text} depends on data")


_BINARY: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod"}  # fmt: skip
