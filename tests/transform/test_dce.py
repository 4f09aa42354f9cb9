"""Dead code goes, inside loops and branches too."""

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Load, Tensor, const
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Loop,
    Program,
    Stack,
    Weight,
    compute,
)
from monotile.ir.verify import verify
from monotile.transform.simplify.dce import eliminate_dead_code

F32, BOOL = DType.F32, DType.BOOL
X, P = Tensor("x", (), F32), Tensor("p", (), BOOL)


def scalar(name: str) -> Tensor:
    return Tensor(name, (), F32)


def plus(name: str, *terms: Tensor):
    def body():
        total = Load(terms[0], ())
        for t in terms[1:]:
            total = Binary("add", total, Load(t, ()))
        return total

    return compute(scalar(name), body)


def test_unused_statements_and_weights_go_inputs_stay() -> None:
    w, v = Tensor("w", (), F32), Tensor("v", (), F32)
    used, unused = plus("used", X, w), plus("unused", v)
    program = Program((X, P), (Weight(w, ("w",)), Weight(v, ("v",))), (used, unused), (used.out,))
    new = eliminate_dead_code(program)
    assert new == Program((X, P), (Weight(w, ("w",)),), (used,), (used.out,))
    assert eliminate_dead_code(new) is new


def loop() -> Loop:
    """a depends on b, c on nothing, d on itself; with a stack of each new c."""
    names = "abcd"
    carries = tuple(Carry(X, scalar(f"{k}0"), scalar(f"{k}1"), scalar(k)) for k in names)
    body = (
        plus("a1", scalar("a0"), scalar("b0")),
        plus("b1", scalar("b0")),
        plus("c1", scalar("c0")),
        plus("d1", scalar("d0")),
    )
    stack = Stack(scalar("c1"), Tensor("all", (3,), F32))
    return Loop(Axis("l", 3), carries, (stack,), body)


def test_carries_live_by_what_depends_on_them() -> None:
    new = eliminate_dead_code(Program((X,), (), (loop(),), (scalar("a"),)))
    verify(new)
    (kept,) = new.body
    assert isinstance(kept, Loop)
    assert [c.out.name for c in kept.carried] == ["a", "b"]
    assert kept.stacked == ()
    assert len(kept.body) == 2


def test_a_stack_keeps_its_carry() -> None:
    (kept,) = eliminate_dead_code(Program((X,), (), (loop(),), (Tensor("all", (3,), F32),))).body
    assert isinstance(kept, Loop)
    assert [c.out.name for c in kept.carried] == ["c"]


def test_the_predicate_of_a_loop_is_alive() -> None:
    go = tuple(Tensor(k, (), BOOL) for k in ("p", "go", "next", "last"))
    x = Carry(X, scalar("x0"), scalar("x1"), scalar("x2"))
    body = (plus("x1", scalar("x0")), compute(go[2], lambda: const(False, BOOL)))
    while_loop = Loop(Axis("l", 9), (x, Carry(*go)), (), body, None, go[2])
    program = Program((X, P), (), (while_loop,), (x.out,))
    assert eliminate_dead_code(program) is program


def test_branch_results_go_with_their_statements() -> None:
    outs = tuple(BranchOut(scalar(f"{k}t"), scalar(f"{k}e"), scalar(k)) for k in "ab")
    then = tuple(plus(f"{k}t", X) for k in "ab")
    otherwise = tuple(plus(f"{k}e", X) for k in "ab")
    branch = Branch(P, then, otherwise, outs)
    new = eliminate_dead_code(Program((X, P), (), (branch,), (scalar("b"),)))
    verify(new)
    assert new.body == (Branch(P, then[1:], otherwise[1:], outs[1:]),)
    assert eliminate_dead_code(Program((X, P), (), (branch,), (X,))).body == ()
