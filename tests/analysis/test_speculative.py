from monotile.analysis.speculative import speculative
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Const, Expr, Load, Select, Tensor, add, idx

X, Y = Axis("i", 8), Axis("j", 4)
PLACES = Tensor("places", (8,), DType.I64)
TABLE = Tensor("table", (50, 4), DType.F32)
PLACE = Load(PLACES, (X,))
VALID = Binary("lt", PLACE, idx(50))
ZERO = Const(0.0, DType.F32)


def guarded(x: Expr, test: Expr = VALID) -> Expr:
    return Select(test, x, ZERO)


def test_loads_that_data_decides_on() -> None:
    found, moved = speculative(guarded(Load(TABLE, (PLACE, Y))), lambda _: True)
    safe = Load(TABLE, (Select(VALID, PLACE, idx(0)), Y))
    assert found == guarded(safe)
    assert moved == (PLACE, safe)  # the first is there wherever it is read


def test_each_after_those_of_its_index() -> None:
    inner = Load(PLACES, (PLACE,))
    _, moved = speculative(guarded(Load(TABLE, (inner, Y))), lambda _: True)
    safe = Load(PLACES, (Select(VALID, PLACE, idx(0)),))
    assert moved == (PLACE, safe, Load(TABLE, (Select(VALID, safe, idx(0)), Y)))


def test_what_stays() -> None:
    load = Load(TABLE, (PLACE, Y))
    for e, there in (
        (load, True),  # no condition
        (guarded(load, Binary("lt", X, idx(3))), True),  # a condition on indices
        (guarded(load), False),  # there may be no element
        (
            guarded(Load(TABLE, (PLACE, add(Y, idx(1))))),
            True,
        ),  # out of bounds without the condition
    ):
        found, moved = speculative(e, lambda t, there=there: there or t == PLACES)
        assert found == e
        assert load not in moved
