"""What is computed twice alike is computed once."""

from monotile.ir.program import Program
from monotile.transform.roll.cse import eliminate_common_subexpressions
from tests.transform.networks import Net, assert_same


def shared(p: Program) -> Program:
    q = Program(p.inputs, p.weights, eliminate_common_subexpressions(p.body, p.outputs), p.outputs)
    assert_same(p, q)
    return q


def test_a_chain_made_twice() -> None:
    n = Net()
    x = n.input(3)
    a, b = (n.pointwise("exp", n.pointwise("tanh", x)) for _ in range(2))
    assert len(shared(n.program(n.pointwise("add", a, b))).body) == 3


def test_results_stay() -> None:
    n = Net()
    x = n.input(3)
    p = n.program(n.pointwise("exp", x), n.pointwise("exp", x))
    assert shared(p).outputs == p.outputs
    assert eliminate_common_subexpressions(p.body, p.outputs) is p.body
