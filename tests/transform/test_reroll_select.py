"""Trees of Selects over equal segments become one body, and mean the same."""

import pytest

from monotile.config import Options
from monotile.ir.expr import Binary, Expr, Load, Select, Tensor, binary, idx, sub, walk
from monotile.ir.program import Compute, Program, compute
from monotile.transform.roll.reroll_selects import reroll_selects
from monotile.transform.roll.roll import roll
from tests.transform.networks import F32, Net, assert_same, recurrence


def selects(p: Program) -> int:
    return sum(
        isinstance(e, Select) for s in p.body if isinstance(s, Compute) for e in walk(s.body)
    )


def rerolled(p: Program) -> Program:
    q = reroll_selects(p)
    assert_same(p, q)
    return q


@pytest.mark.parametrize("parts", [2, 5, 8])
def test_stack_of_the_parts_of_a_tensor(parts: int) -> None:
    n = Net()
    x = n.input(parts, 2, 3)
    t = Tensor("y", (parts, 2, 3), F32)

    def body(g: Expr, i: Expr, j: Expr) -> Expr:
        e: Expr = Load(x, (idx(parts - 1), i, j))
        for k in reversed(range(parts - 1)):
            e = Select(binary("lt", g, idx(k + 1)), Load(x, (idx(k), i, j)), e)
        return e

    n.add(compute(t, body), t)
    q = rerolled(n.program(t))
    (s,) = q.body
    assert isinstance(s, Compute)
    assert s.body == Load(x, s.axes)


def test_concatenation_of_the_parts_of_a_tensor() -> None:
    n = Net()
    x = n.input(4, 3, 2)
    t = Tensor("y", (12, 2), F32)

    def body(g: Expr, j: Expr) -> Expr:
        def tree(lo: int, hi: int) -> Expr:
            if hi - lo == 1:
                return Load(x, (idx(lo), sub(g, idx(3 * lo)), j))
            mid = (lo + hi) // 2
            return Select(binary("lt", g, idx(mid * 3)), tree(lo, mid), tree(mid, hi))

        return tree(0, 4)

    n.add(compute(t, body), t)
    (s,) = rerolled(n.program(t)).body
    assert isinstance(s, Compute)
    i, j = s.axes
    three = idx(3)
    assert s.body == Load(x, (Binary("floordiv", i, three), Binary("mod", i, three), j))


def test_concatenation_of_weights_is_a_table() -> None:
    n = Net()
    p = n.program(n.cat([n.weight(3, 2) for _ in range(4)]))
    q = rerolled(p)
    assert selects(q) == 0
    assert [len(w.parts) for w in q.weights] == [4]


def test_segments_that_are_alike_in_part() -> None:
    n = Net()
    x, y = n.input(3, 2), n.input(2)
    t = Tensor("y", (4, 2), F32)

    def body(g: Expr, j: Expr) -> Expr:
        e: Expr = Load(y, (j,))
        for k in range(3):
            e = Select(binary("eq", g, idx(k)), Load(x, (idx(k), j)), e)
        return e

    n.add(compute(t, body), t)
    assert selects(rerolled(n.program(t))) == 1


def test_unlike_segments_stay() -> None:
    n = Net()
    p = n.program(n.cat([n.input(3, 2), n.input(3, 2)]))
    assert reroll_selects(p) is p


@pytest.mark.parametrize("step_outer", [True, False])
def test_outputs_of_a_recurrence(step_outer: bool) -> None:
    p = recurrence(2, 6, step_outer=step_outer)
    assert selects(rerolled(roll(p, Options()))) == 0
