"""Repeated stretches become Loops, and mean the same."""

import pytest

from monotile.config import Options
from monotile.ir.expr import idx
from monotile.ir.program import Loop, Program, statements
from monotile.transform.roll.roll import roll
from tests.transform.networks import Net, assert_same, mlp, recurrence


def rolled(p: Program) -> Program:
    q = roll(p, Options())
    assert_same(p, q)
    return q


def count(p: Program) -> int:
    return sum(1 for _ in statements(p.body))


def test_layers_become_one_loop() -> None:
    small, large = rolled(mlp(3)), rolled(mlp(12))
    assert count(small) == count(large)
    (loop,) = [s for s in large.body if isinstance(s, Loop)]
    assert loop.axis.extent == 12
    assert len(loop.carried) == 1
    assert not loop.stacked


def test_off() -> None:
    p = mlp(6)
    assert roll(p, Options(roll=False)) is p


def test_nothing_to_roll() -> None:
    p = mlp(1)
    assert roll(p, Options()) is p


@pytest.mark.parametrize("step_outer", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_recurrence(step_outer: bool, ends: bool) -> None:
    p = rolled(recurrence(3, 5, step_outer=step_outer, ends=ends))
    q = rolled(recurrence(3, 10, step_outer=step_outer, ends=ends))
    assert count(p) == count(q)


def test_what_the_first_layer_makes_for_all_is_no_part_of_it() -> None:
    n = Net()
    x, w = n.input(3, 4), n.weight(4)
    shared = None
    for _ in range(6):
        a = n.linear(x, n.weight(4, 4))
        if shared is None:
            shared = n.pointwise("exp", n.pointwise("tanh", w))
        x = n.pointwise("tanh", n.pointwise("add", n.pointwise("mul", a, shared), x))
    p = rolled(n.program(x))
    (loop,) = [s for s in p.body if isinstance(s, Loop)]
    assert loop.axis.extent == 6
    assert len(p.body) == 3


@pytest.mark.parametrize("joined", [True, False])
def test_two_iterations_stay_for_a_sum_behind_them(joined: bool) -> None:
    """It joins the second, where a loop would hand its result on through memory."""
    n = Net()
    x = n.input(3, 4)
    for _ in range(4):
        h = x
        for _ in range(2):
            h = n.linear(n.pointwise("tanh", n.pointwise("exp", n.pointwise("abs", h))), n.weight(4, 4))  # fmt: skip
        x = n.pointwise("add", h, x) if joined else n.linear(h, n.weight(4, 4))
    p = rolled(n.program(x))
    (loop,) = [s for s in p.body if isinstance(s, Loop)]
    assert loop.axis.extent == 4
    assert any(isinstance(s, Loop) for s in loop.body) is not joined


def test_two_stacks_with_masks_of_their_own() -> None:
    """The second reads the first's result in every layer; each layer makes its mask anew."""
    n = Net()
    source, x, w = n.input(3, 4), n.input(3, 4), [n.weight(4), n.weight(4)]
    kept = []
    for stack in range(2):
        h = source if stack == 0 else x
        bias = None
        for _ in range(6):
            a = n.linear(h, n.weight(4, 4))
            bias = bias or n.pointwise("exp", n.pointwise("tanh", w[stack]))
            mask = n.pointwise("abs", bias)
            b = n.pointwise("add", n.pointwise("mul", a, mask), h)
            if stack == 1:
                b = n.pointwise("add", n.linear(source, n.weight(4, 4)), b)
            h = n.pointwise("tanh", b)
            kept.append(a)
        source = n.norm(h, n.weight(4)) if stack == 0 else source
    views = [n.transposed(t) for t in kept]  # in one heap, as the exporter leaves them
    p = rolled(n.program(h, *views))
    loops = [s for s in p.body if isinstance(s, Loop)]
    assert [s.axis.extent for s in loops] == [6, 6]
    assert all(len(s.stacked) == 1 for s in loops)


@pytest.mark.parametrize("seen", [(0, 3), (5,), (2, 5)])
def test_values_used_after_the_loop(seen: tuple[int, ...]) -> None:
    n = Net()
    x = n.input(3, 4)
    inner = []
    for _ in range(6):
        inner.append(n.linear(x, n.weight(4, 4)))
        x = n.pointwise("tanh", n.pointwise("add", inner[-1], x))
    p = rolled(n.program(x, *(inner[k] for k in seen)))
    assert any(isinstance(s, Loop) for s in p.body)


def test_tied_weights_stay_one() -> None:
    n = Net()
    x, w = n.input(3, 4), n.weight(4, 4)
    for _ in range(6):
        x = n.pointwise("tanh", n.pointwise("add", n.linear(x, w), n.weight(4)))
    p = rolled(n.program(x))
    assert [k.table for k in p.weights] == [0, 1]


def test_parallel_groups_are_not_put_in_sequence() -> None:
    n = Net()
    x = n.input(3, 4)
    y = n.pointwise("tanh", x)
    for _ in range(8):
        expert = n.pointwise("tanh", n.pointwise("add", n.linear(x, n.weight(4, 4)), n.weight(4)))
        y = n.pointwise("add", y, expert)
    p = n.program(y)
    assert roll(p, Options()) is p


@pytest.mark.parametrize("ahead", [False, True], ids=["one after the other", "one product ahead"])
def test_norms_of_siblings_are_not_put_in_sequence(ahead: bool) -> None:
    """Queries and keys of one operand: a loop could pass each product to the next iteration, which would norm it."""
    n = Net()
    x = n.input(2, 4)
    products, norms = [], []
    for k in range(3):
        products.append(n.linear(x, n.weight(4, 4)))
        if k >= ahead:
            norm = n.norm(products[k - ahead], n.weight(4))
            norms.append(n.pointwise("exp", n.pointwise("tanh", n.pointwise("neg", norm))))
    p = n.program(*norms, products[-1])
    assert rolled(p) is p


def test_a_first_repetition_that_starts_from_a_slice_and_from_zeros() -> None:
    n = Net()
    xs = n.input(3, 2, 4)
    at = (idx(1),)
    x = xs
    for _ in range(5):
        x = n.linear(x, n.weight(4, 4), at)
        at = ()
        x = n.pointwise("tanh", n.pointwise("add", x, n.weight(4)))
    p = rolled(n.program(x))
    (loop,) = [s for s in p.body if isinstance(s, Loop)]
    assert loop.axis.extent == 5


def test_loops_of_loops() -> None:
    n = Net()
    x = n.input(2, 4)
    for _ in range(3):
        for _ in range(4):
            x = n.pointwise("tanh", n.linear(x, n.weight(4, 4)))
        x = n.norm(n.norm(x, n.weight(4)), n.weight(4))
    p = rolled(n.program(x))
    (outer,) = [s for s in p.body if isinstance(s, Loop)]
    assert outer.axis.extent == 3
    assert [s.axis.extent for s in outer.body if isinstance(s, Loop)] == [4, 2] or len(
        outer.body
    ) < 8
    assert any(len(w.tensor.shape) == 4 and w.table == 2 for w in p.weights)
