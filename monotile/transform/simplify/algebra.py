"""Algebraic rules of scalar expressions as a table. Every rule preserves the value bit for bit, including NaN, infinities
and the sign of zero (so there is no rule for x * 0 or x + 0 of floats). Exceptions: pow(x, 3), which PyTorch computes the same
way, and the activation curves, which may differ in the last place of 1. Sums, quotients and remainders of int64 are in
`index_algebra.py`.
"""

import math

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Const, Expr, Unary, const
from monotile.transform.simplify.pattern import Bindings, Rule, Table, Var, cast_from, op

x, y, z = Var("x"), Var("y"), Var("z")
c, d = Var("c", literal=True), Var("d", literal=True)


def _int(dtype: DType) -> bool:
    return dtype.is_int


def _float(dtype: DType) -> bool:
    return dtype.is_float


def _bool(dtype: DType) -> bool:
    return dtype is DType.BOOL


def _power_of_two(found: Bindings) -> bool:
    """Whether 1 / c is exact, and far from overflow and subnormals in float32."""
    e = found["c"]
    if not isinstance(e, Const) or not isinstance(e.value, float):
        return False
    mantissa, exponent = math.frexp(e.value)
    limit = 14 if e.dtype is DType.F16 else 100
    return abs(mantissa) == 0.5 and abs(exponent) < limit


def _reciprocal(found: Bindings) -> Expr:
    e = found["c"]
    assert isinstance(e, Const)
    return Binary("mul", found["x"], const(1 / float(e.value), e.dtype))


def _from_bool(found: Bindings) -> bool:
    return cast_from(found["x"], DType.BOOL) is not None


def _the_bool(found: Bindings) -> Expr:
    inner = cast_from(found["x"], DType.BOOL)
    assert inner is not None
    return inner


def _not_the_bool(found: Bindings) -> Expr:
    return Unary("not", _the_bool(found))


def _integers(found: Bindings) -> bool:
    return not found["x"].dtype.is_float


INTEGERS = (
    Rule(op("add", x, 0), x, _int),
    Rule(op("sub", x, 0), x, _int),
    Rule(op("sub", x, x), 0, _int),
    Rule(op("mul", x, 1), x, _int),
    Rule(op("mul", x, 0), 0, _int),
    Rule(op("floordiv", x, 1), x, _int),
    Rule(op("truncdiv", x, 1), x, _int),
    Rule(op("mod", x, 1), 0, _int),
    Rule(op("rem", x, 1), 0, _int),
    Rule(op("ipow", x, 1), x, _int),
    Rule(op("ipow", x, 2), op("mul", x, x), _int),
    Rule(op("bitor", x, 0), x, _int),
    Rule(op("bitxor", x, 0), x, _int),
    Rule(op("bitand", x, 0), 0, _int),
    Rule(op("shl", x, 0), x, _int),
    Rule(op("shr", x, 0), x, _int),
    Rule(op("add", op("add", x, c), d), op("add", x, op("add", c, d)), _int),
    Rule(op("mul", op("mul", x, c), d), op("mul", x, op("mul", c, d)), _int),
    *(Rule(op(name, x, x), True, _int) for name in ("eq", "le", "ge")),
    *(Rule(op(name, x, x), False, _int) for name in ("ne", "lt", "gt")),
)

FLOATS = (
    Rule(op("add", x, -0.0), x, _float),
    Rule(op("sub", x, 0.0), x, _float),
    Rule(op("mul", x, 1.0), x, _float),
    Rule(op("mul", x, -1.0), op("neg", x), _float),
    Rule(op("div", x, 1.0), x, _float),
    Rule(op("div", x, c), _reciprocal, _float, _power_of_two),
    Rule(op("pow", x, 0.0), 1.0, _float),
    Rule(op("pow", x, 1.0), x, _float),
    Rule(op("pow", x, 2.0), op("mul", x, x), _float),
    Rule(op("pow", x, 3.0), op("mul", op("mul", x, x), x), _float),
    Rule(op("pow", x, -1.0), op("div", 1.0, x), _float),
    Rule(op("add", x, op("neg", y)), op("sub", x, y), _float),
    Rule(op("sub", x, op("neg", y)), op("add", x, y), _float),
    Rule(op("mul", op("neg", x), op("neg", y)), op("mul", x, y), _float),
)


def _single(dtype: DType) -> bool:
    return dtype is DType.F32


# Parts of activation functions. As one operation they need no division, and no erf or tanh that is accurate near zero.
CURVES = (
    Rule(
        op("div", y, op("add", op("exp", op("neg", x)), 1.0)),
        op("mul", y, op("logistic", x)),
        _single,
    ),
    Rule(op("add", op("erf", x), 1.0), op("one_plus_erf", x), _single),
    Rule(
        op("add", op("tanh", x), 1.0),
        op("mul", op("logistic", op("mul", x, 2.0)), 2.0),
        _single,
    ),
)

NUMBERS = (
    Rule(op("neg", op("neg", x)), x),
    Rule(op("abs", op("neg", x)), op("abs", x)),
    Rule(op("abs", op("abs", x)), op("abs", x)),
    Rule(op("min", x, x), x),
    Rule(op("max", x, x), x),
)

LOGIC = (
    *(Rule(op(name, x, True), x, _bool) for name in ("and", "bitand", "eq", "min")),
    *(Rule(op(name, x, False), False, _bool) for name in ("and", "bitand", "min")),
    *(Rule(op(name, x, True), True, _bool) for name in ("or", "bitor", "max")),
    *(Rule(op(name, x, False), x, _bool) for name in ("or", "bitor", "bitxor", "ne", "max")),
    *(Rule(op(name, x, True), op("not", x), _bool) for name in ("ne", "bitxor")),
    Rule(op("eq", x, False), op("not", x), _bool),
    *(Rule(op(name, x, x), x, _bool) for name in ("and", "or", "bitand", "bitor")),
    Rule(op("and", True, x), x),
    Rule(op("and", False, x), False),
    Rule(op("or", True, x), True),
    Rule(op("or", False, x), x),
    Rule(op("not", op("not", x)), x),
    Rule(op("not", op("eq", x, y)), op("ne", x, y)),
    Rule(op("not", op("ne", x, y)), op("eq", x, y)),
    # For floats these are not negations of each other: every comparison with NaN is false.
    Rule(op("not", op("lt", x, y)), op("ge", x, y), _bool, _integers),
    Rule(op("not", op("le", x, y)), op("gt", x, y), _bool, _integers),
    Rule(op("not", op("gt", x, y)), op("le", x, y), _bool, _integers),
    Rule(op("not", op("ge", x, y)), op("lt", x, y), _bool, _integers),
    # A condition converted to a number and back.
    *(Rule(op("ne", x, zero), _the_bool, when=_from_bool) for zero in (0, 0.0)),
    *(Rule(op("eq", x, zero), _not_the_bool, when=_from_bool) for zero in (0, 0.0)),
)

SELECTS = (
    Rule(op("select", x, y, y), y),
    Rule(op("select", x, True, False), x),
    Rule(op("select", x, False, True), op("not", x)),
    Rule(op("select", x, y, False), op("and", x, y), _bool),
    Rule(op("select", x, True, y), op("or", x, y), _bool),
    Rule(op("select", op("not", x), y, z), op("select", x, z, y)),
)

ALGEBRA = Table((*INTEGERS, *FLOATS, *CURVES, *NUMBERS, *LOGIC, *SELECTS))
# No rules for min and max: of zeros of different sign either may result.
COMMUTATIVE = frozenset({"add", "mul", "eq", "ne", "bitand", "bitor", "bitxor"})
FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
