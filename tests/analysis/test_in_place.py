"""Which carried values a loop updates where they lie."""

from monotile.analysis.in_place import carried_in_place, chain, scatters_of, tables_of, updated_in
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, Tensor, const, idx
from monotile.ir.program import Carry, Loop, Program, Scatter, Statement, Weight, compute

F32 = DType.F32
TABLE = Weight(Tensor("table", (3, 4), F32), ("a", "b", "c"), 1)
LAYER = Axis("l", 3)


def tensor(name: str) -> Tensor:
    return Tensor(name, (3, 4), F32)


def scatter(out: str, base: str, at: Expr = LAYER) -> Scatter:
    i = Axis("i0", 4)
    return Scatter(tensor(out), tensor(base), (i,), (at, i), const(1.0, F32))


def looped(*body: Statement, result: str = "new", axis: Axis = LAYER, param: str = "old", init: Tensor = TABLE.tensor, out: str = "end") -> Loop:  # fmt: skip
    return Loop(axis, (Carry(init, tensor(param), tensor(result), tensor(out)),), (), body)


def test_a_chain_of_updates() -> None:
    loop = looped(scatter("between", "old"), scatter("new", "between"))
    assert chain(loop, loop.carried[0]) == ("between", "new")
    assert updated_in(loop) == {"old", "between"}
    program = Program((), (TABLE,), (loop,), (loop.carried[0].out,), ("table",))
    assert set(scatters_of(program, "end")) == {"between", "new"}
    assert tables_of(program) == dict.fromkeys(("table", "old", "between", "new", "end"), 1)


def test_what_the_last_update_made_may_be_read() -> None:
    read = compute(Tensor("sum", (4,), F32), lambda i: Load(tensor("new"), (LAYER, i)))
    assert carried_in_place(looped(scatter("new", "old"), read))


def test_what_is_written_over_may_not() -> None:
    for name in ("old", "between"):
        read = compute(Tensor("sum", (4,), F32), lambda i, n=name: Load(tensor(n), (LAYER, i)))
        loop = looped(read, scatter("between", "old"), scatter("new", "between"))
        assert not carried_in_place(loop)


def test_other_values_alternate() -> None:
    made = compute(tensor("new"), lambda i, k: Load(tensor("old"), (i, k)))
    assert not carried_in_place(looped(made))
    assert not carried_in_place(looped(result="old"))


def test_a_loop_inside_that_updates() -> None:
    inner = looped(scatter("inner", "before", idx(0)), result="inner", axis=Axis("m", 2), param="before", init=tensor("old"), out="new")  # fmt: skip
    outer = looped(inner)
    assert chain(outer, outer.carried[0]) == ("new",)
    program = Program((), (TABLE,), (outer,), (outer.carried[0].out,), ("table",))
    assert set(scatters_of(program, "end")) == {"inner"}
    assert tables_of(program)["inner"] == 1
