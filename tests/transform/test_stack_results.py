"""Results that are rows of one tensor, without copies."""

import numpy as np

from monotile.config import Options
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Load, Tensor, idx
from monotile.ir.program import Loop, compute
from monotile.ir.signature import OutputLeaf
from monotile.ir.verify import verify
from monotile.transform.legalise.stack_results import stack_results
from monotile.transform.roll.roll import roll
from tests.transform.networks import Net, values_for


def layers(n: Net, count: int) -> tuple[Tensor, list[Tensor]]:
    x = n.input(3, 4)
    inner: list[Tensor] = []
    for _ in range(count):
        inner.append(n.linear(x, n.weight(4, 4)))
        x = n.pointwise("tanh", n.pointwise("add", inner[-1], x))
    return x, inner


def test_what_every_layer_gives_is_one_result() -> None:
    n = Net()
    x, inner = layers(n, 6)
    p = roll(n.program(*inner, x), Options())
    q, places = stack_results(p)
    verify(q)
    assert [type(s) for s in q.body] == [Loop]
    assert places == (*(OutputLeaf(0, (k,)) for k in range(6)), OutputLeaf(1))
    values = values_for(p)
    old, new = evaluate(p, values), evaluate(q, values)
    for place, expected in zip(places, old, strict=True):
        np.testing.assert_array_equal(new[place.index][place.row], expected)


def test_a_row_that_is_read_or_of_an_input_stays_a_tensor() -> None:
    n = Net()
    xs = n.input(2, 3)
    row = Tensor("row", (3,), xs.dtype)
    n.add(compute(row, lambda i: Load(xs, (idx(1), i))), row)
    p = n.program(row)
    assert stack_results(p) == (p, (OutputLeaf(0),))


def test_no_row_is_given_twice_nor_of_another_result() -> None:
    n = Net()
    whole = n.pointwise("tanh", n.input(2, 3, 4))
    rows = [Tensor(f"row{k}", (3, 4), whole.dtype) for k in range(2)]
    part = Tensor("part", (4,), whole.dtype)
    for r in rows:
        n.add(compute(r, lambda i, j: Load(whole, (idx(1), i, j))), r)
    n.add(compute(part, lambda i: Load(whole, (idx(1), idx(2), i))), part)
    q, places = stack_results(n.program(*rows, part))
    verify(q)
    assert places == (OutputLeaf(0, (1,)), OutputLeaf(1), OutputLeaf(2))
    assert stack_results(n.program(whole, rows[0]))[1] == (OutputLeaf(0), OutputLeaf(1))
