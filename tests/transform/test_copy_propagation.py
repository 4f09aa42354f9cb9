"""Whole uses of copies move to their sources."""

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Load, Tensor, Unary, const, idx
from monotile.ir.program import Carry, Loop, Program, Stack, compute
from monotile.ir.verify import verify
from monotile.transform.legalise.copy_insertion import insert_copies
from monotile.transform.simplify.copy_propagation import propagate_copies
from monotile.transform.simplify.dce import eliminate_dead_code

F32 = DType.F32
X = Tensor("x", (4, 1, 3), F32)


def test_an_output_that_repeats_a_tensor_is_that_tensor() -> None:
    y = compute(Tensor("y", (4, 1, 3), F32), lambda i, j, k: Unary("exp", Load(X, (i, j, k))))
    z = compute(Tensor("z", (4, 1, 3), F32), lambda i, _, k: Load(y.out, (i, idx(0), k)))
    new = eliminate_dead_code(propagate_copies(Program((X,), (), (y, z), (z.out,))))
    assert new == Program((X,), (), (y,), (y.out,))


def test_a_permutation_or_a_cast_is_no_copy() -> None:
    square, half = Tensor("s", (4, 4), F32), Tensor("h", (4, 4), DType.F16)
    flip = compute(Tensor("t", (4, 4), F32), lambda i, j: Load(square, (j, i)))
    wide = compute(Tensor("w", (4, 4), F32), lambda i, j: Cast(Load(half, (i, j)), F32))
    program = Program((square, half), (), (flip, wide), (flip.out, wide.out))
    assert propagate_copies(program) is program


def test_carried_values_come_from_where_they_are_made() -> None:
    param, made, copy, out = (Tensor(k, (4, 1, 3), F32) for k in ("p", "m", "c", "o"))
    body = (
        compute(made, lambda *i: Binary("add", Load(param, i), const(1.0, F32))),
        compute(copy, lambda *i: Load(made, i)),
    )
    stack = Stack(copy, Tensor("all", (2, 4, 1, 3), F32))
    loop = Loop(Axis("l", 2), (Carry(X, param, copy, out),), (stack,), body)
    new = eliminate_dead_code(propagate_copies(Program((X,), (), (loop,), (out, stack.out))))
    verify(new)
    (kept,) = new.body
    assert isinstance(kept, Loop)
    assert kept.body == body[:1]
    assert kept.carried[0].result == kept.stacked[0].value == made
    assert insert_copies(new) is new
