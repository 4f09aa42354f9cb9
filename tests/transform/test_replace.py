"""Statements that read a tensor from where it has moved to."""

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Load, Tensor, add, idx
from monotile.ir.program import Carry, Loop, Stack, compute
from monotile.transform.replace import Moved, replace_uses

F32 = DType.F32


def test_what_a_loop_defines_is_its_own() -> None:
    """The loop of a stretch that was rolled defines what its first iteration did, which is elsewhere for all who follow."""
    x, y, a = (Tensor(name, (4,), F32) for name in ("x", "y", "a"))
    before, last = Tensor("before", (4,), F32), Tensor("last", (4,), F32)
    every, elsewhere, whole = Tensor("every", (2, 4), F32), Tensor("z", (2, 4), F32), Tensor("w", (4,), F32)  # fmt: skip
    step = compute(a, lambda i: add(Load(before, (i,)), Load(y, (i,))))
    loop = Loop(Axis("l", 2), (Carry(x, before, a, last),), (Stack(a, every),), (step,))
    moved = {"a": Moved(elsewhere, (idx(0),), whole), "y": Moved(elsewhere, (idx(1),), None)}
    found = replace_uses(loop, moved)
    assert isinstance(found, Loop)
    assert (found.carried, found.stacked) == (loop.carried, loop.stacked)
    assert found.body == (
        compute(a, lambda i: add(Load(before, (i,)), Load(elsewhere, (idx(1), i)))),
    )
    after = compute(Tensor("b", (4,), F32), lambda i: Load(a, (i,)))
    assert replace_uses(after, moved) == compute(after.out, lambda i: Load(elsewhere, (idx(0), i)))
