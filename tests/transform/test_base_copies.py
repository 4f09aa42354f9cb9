"""Scatters get bases of their own."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Load, Tensor, const, idx
from monotile.ir.printer import show
from monotile.ir.program import Carry, Compute, Loop, Program, Scatter, Statement, Weight, compute
from monotile.ir.verify import verify
from monotile.transform.legalise.base_copies import insert_base_copies
from monotile.transform.legalise.copy_insertion import insert_copies
from monotile.transform.legalise.state_copies import insert_state_copies
from tests.ir.strategies import programs, same, values

F32 = DType.F32
X = Tensor("x", (4,), F32)
I = Axis("i0", 2)  # noqa: E741


def put(name: str, base: Tensor) -> Scatter:
    return Scatter(Tensor(name, (4,), F32), base, (I,), (I,), const(1.0, F32))


def copy(name: str, x: Tensor) -> Compute:
    return compute(Tensor(name, (4,), F32), lambda i: Load(x, (i,)))


def names(body: tuple[Statement, ...]) -> list[str]:
    return [s.out.name for s in body if isinstance(s, (Compute, Scatter))]


def test_an_input_is_copied() -> None:
    a = put("a", X)
    assert names(insert_base_copies(Program((X,), (), (a,), (a.out,))).body) == ["x_base", "a"]


def test_a_weight_is_copied() -> None:
    a = put("a", Tensor("w", (4,), F32))
    assert names(
        insert_base_copies(Program((), (Weight(a.base, ("p",)),), (a,), (a.out,))).body
    ) == [
        "w_base",
        "a",
    ]


def test_what_no_one_else_wants_is_updated_in_place() -> None:
    y = copy("y", X)
    a, b = put("a", y.out), put("b", Tensor("a", (4,), F32))
    program = Program((X,), (), (y, a, b), (b.out,))
    assert insert_base_copies(program) is program


@pytest.mark.parametrize("reader", ["before", "after", "output", "itself"])
def test_what_others_want_is_copied(reader: str) -> None:
    y = copy("y", X)
    a, z = put("a", y.out), copy("z", y.out)
    if reader == "itself":
        a = Scatter(a.out, a.base, a.axes, a.index, Load(y.out, (idx(3),)))
    body = {"before": (y, z, a), "after": (y, a, z)}.get(reader, (y, a))
    more = {"output": (y.out,), "itself": ()}.get(reader, (z.out,))
    new = insert_base_copies(Program((X,), (), body, (a.out, *more)))
    verify(new)
    assert "y_base" in names(new.body)


def test_what_is_made_outside_the_loop_is_copied_inside() -> None:
    y, param = copy("y", X), Tensor("h", (4,), F32)
    a = put("a", y.out)
    carry = Carry(X, param, a.out, Tensor("end", (4,), F32))
    new = insert_base_copies(
        Program((X,), (), (y, Loop(Axis("l", 3), (carry,), (), (a,))), (carry.out,))
    )
    loop = new.body[1]
    assert isinstance(loop, Loop)
    assert names(loop.body) == ["y_base", "a"]


@given(program=programs(), seed=st.integers(0, 1 << 16))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_meaning_stays(program: Program, seed: int) -> None:
    new = insert_base_copies(insert_state_copies(insert_copies(program)))
    verify(new)
    assert insert_base_copies(new) is new
    found = values(program, seed)
    before, after = evaluate(program, found), evaluate(new, found)
    assert all(same(a, b) for a, b in zip(before, after, strict=True)), show(program) + show(new)
