"""The normal form: every result has a buffer of its own."""

from hypothesis import HealthCheck, given, settings

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Load, Tensor
from monotile.ir.program import Branch, Carry, Loop, Program, Stack, Statement, compute, defined
from monotile.ir.verify import verify
from monotile.transform.legalise.copy_insertion import insert_copies
from tests.ir.strategies import programs

F32 = DType.F32
X = Tensor("x", (2,), F32)


def _own(body: tuple[Statement, ...]) -> set[str]:
    return {t.name for s in body for t in defined(s)}


def _normal(body: tuple[Statement, ...]) -> bool:
    for s in body:
        match s:
            case Loop():
                results = [c.result.name for c in s.carried]
                local = {*results, *(k.value.name for k in s.stacked)} <= _own(s.body)
                if not local or len(set(results)) < len(results) or not _normal(s.body):
                    return False
            case Branch():
                for side, names in (
                    (s.then, [o.then.name for o in s.outs]),
                    (s.otherwise, [o.otherwise.name for o in s.outs]),
                ):
                    if not set(names) <= _own(side) or not _normal(side):
                        return False
            case _:
                pass
    return True


@given(programs())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_afterwards_every_result_is_its_statements_own(program: Program) -> None:
    new = insert_copies(program)
    verify(new)
    names = [t.name for t in new.outputs]
    assert len(set(names)) == len(names)
    assert set(names) <= _own(new.body)
    assert _normal(new.body)
    assert insert_copies(new) is new


def test_an_input_as_output_and_an_output_twice_are_copied() -> None:
    y = compute(Tensor("y", (2,), F32), lambda i: Load(X, (i,)))
    new = insert_copies(Program((X,), (), (y,), (y.out, y.out, X)))
    assert [t.name for t in new.outputs] == ["y", "y_copy", "x_copy"]
    assert len(new.body) == 3


def test_swapped_carries_are_copied_in_the_body() -> None:
    a, b = Tensor("a", (2,), F32), Tensor("b", (2,), F32)
    swap = Loop(
        Axis("l", 3),
        (Carry(X, a, b, Tensor("c", (2,), F32)), Carry(X, b, a, Tensor("d", (2,), F32))),
        (Stack(a, Tensor("all", (3, 2), F32)),),
        (),
    )
    new = insert_copies(Program((X,), (), (swap,), (swap.stacked[0].out,)))
    (loop,) = new.body
    assert isinstance(loop, Loop)
    assert [c.result.name for c in loop.carried] == ["b_copy", "a_copy"]
    assert len(loop.body) == 3


def test_normal_programs_are_left_alone() -> None:
    y = compute(Tensor("y", (2,), F32), lambda i: Load(X, (i,)))
    program = Program((X,), (), (y,), (y.out,))
    assert insert_copies(program) is program
