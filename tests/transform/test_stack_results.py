"""Results that are rows of one tensor, without copies."""

import numpy as np

from monotile.config import Options
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Load, Tensor, idx
from monotile.ir.program import Loop, compute
from monotile.ir.signature import OutputLeaf
from monotile.ir.verify import verify
from monotile.transform.roll import roll
from monotile.transform.stack_results import stack_results
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
