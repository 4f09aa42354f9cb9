from monotile.analysis.unconditional import TRUE, both, conditional, either, unconditional
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Load, Select, Tensor, Unary, idx

AXIS = Axis("i", 8)
A, B, C = (Load(Tensor(name, (8,), DType.F32), (AXIS,)) for name in "abc")
FIRST = Binary("lt", AXIS, idx(4))
POSITIVE = Binary("lt", C, A)


def test_what_a_select_evaluates() -> None:
    e = Select(FIRST, Binary("add", A, B), C)
    assert list(unconditional(e)) == []
    assert list(conditional(e)) == [(A, FIRST), (B, FIRST), (C, Unary("not", FIRST))]


def test_conditions_in_conditions() -> None:
    e = Select(Binary("and", FIRST, POSITIVE), B, A)
    found = dict(conditional(e))
    assert found[C] == FIRST
    assert found[B] == Binary("and", FIRST, POSITIVE)


def test_conditions_join() -> None:
    assert both(TRUE, FIRST) == FIRST
    assert either(TRUE, FIRST) == TRUE
    assert either(FIRST, FIRST) == FIRST
