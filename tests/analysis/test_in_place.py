"""Which carried values a loop updates where they lie."""

from monotile.analysis.in_place import (
    carried_in_place,
    chain,
    first_updates,
    scatters_of,
    tables_of,
)
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, const, idx
from monotile.ir.program import Carry, Loop, Program, Scatter, Stack, Statement, Weight, compute

F32 = DType.F32
TABLE = Weight(Tensor("table", (3, 4), F32), ("a", "b", "c"), 1)
LAYER = Axis("l", 3)
COLUMN = Axis("i0", 4)


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
    assert first_updates(loop) == {"between": "old"}
    program = Program((), (TABLE,), (loop,), (loop.carried[0].out,), ("table",))
    assert set(scatters_of(program, "end")) == {"between", "new"}
    assert tables_of(program) == dict.fromkeys(("table", "old", "between", "new", "end"), 1)


def test_what_the_last_update_made_may_be_read() -> None:
    read = compute(Tensor("sum", (4,), F32), lambda i: Load(tensor("new"), (LAYER, i)))
    assert carried_in_place(looped(scatter("new", "old"), read))


def test_the_old_value_may_be_read_before_the_first_update() -> None:
    read = compute(Tensor("sum", (4,), F32), lambda i: Load(tensor("old"), (LAYER, i)))
    assert carried_in_place(looped(scatter("between", "old"), read, scatter("new", "between")))


def test_what_needs_both_values_leaves_none_in_place() -> None:
    both = compute(Tensor("sum", (4,), F32), lambda i: add(Load(tensor("old"), (LAYER, i)), Load(tensor("new"), (LAYER, i))))  # fmt: skip
    assert not carried_in_place(looped(scatter("new", "old"), both))
    own = Scatter(
        tensor("new"),
        tensor("old"),
        (COLUMN,),
        (LAYER, COLUMN),
        Load(tensor("old"), (idx(0), COLUMN)),
    )
    assert not carried_in_place(looped(own))


def test_what_is_written_over_on_the_way_may_not_be_read() -> None:
    read = compute(Tensor("sum", (4,), F32), lambda i: Load(tensor("between"), (LAYER, i)))
    assert not carried_in_place(looped(read, scatter("between", "old"), scatter("new", "between")))


def test_of_two_that_need_each_other_the_first_is_updated_in_place() -> None:
    def crossed(out: str, base: str, other: str) -> Scatter:
        return Scatter(
            tensor(out),
            tensor(base),
            (COLUMN,),
            (LAYER, COLUMN),
            Load(tensor(other), (LAYER, COLUMN)),
        )

    carries = tuple(Carry(TABLE.tensor, tensor(f"old{k}"), tensor(f"new{k}"), tensor(f"end{k}")) for k in "ab")  # fmt: skip
    loop = Loop(LAYER, carries, (), (crossed("newa", "olda", "oldb"), crossed("newb", "oldb", "olda")))  # fmt: skip
    assert carried_in_place(loop) == carries[:1]


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


def test_what_needs_the_old_value_and_another_result_of_the_loop_inside() -> None:
    update = scatter("inner", "before", idx(0))
    count = compute(Tensor("count", (), F32), lambda: const(1.0, F32))
    stack = Stack(count.out, Tensor("counts", (2,), F32))
    carry = Carry(tensor("old"), tensor("before"), tensor("inner"), tensor("new"))
    inner = Loop(Axis("m", 2), (carry,), (stack,), (update, count))
    both = compute(Tensor("sum", (2,), F32), lambda i: add(Load(tensor("old"), (LAYER, i)), Load(stack.out, (i,))))  # fmt: skip
    assert carried_in_place(looped(inner))
    assert not carried_in_place(looped(inner, both))
