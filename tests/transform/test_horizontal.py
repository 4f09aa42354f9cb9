"""Siblings become one Compute, and mean the same."""

import pytest

from monotile.config import Options
from monotile.ir.expr import Axis, Binary, Load, Tensor, idx
from monotile.ir.program import Compute, Program, Scatter, compute
from monotile.transform.fusion.horizontal import fuse_horizontally
from monotile.transform.roll.roll import roll
from tests.transform.networks import F32, Net, assert_same


def fused(p: Program) -> Program:
    q = fuse_horizontally(p)
    assert_same(p, q)
    return q


def attention_inputs(n: Net, x: Tensor, width: int) -> Tensor:
    """Queries, keys and values with a bias each, and a sum of products of theirs."""
    rows = x.shape[0]
    q, k, v = (
        n.pointwise("add", n.linear(x, n.weight(width, width)), n.weight(width)) for _ in range(3)
    )
    scores = Tensor(n.name("scores"), (rows, rows), F32)
    n.add(
        compute(
            scores,
            lambda i, j, r: Binary("mul", Load(q, (i, r)), Load(k, (j, r))),
            reduce=(width,),
            combiner="sum",
        ),
        scores,
    )
    out = Tensor(n.name("mix"), (rows, width), F32)
    return n.add(
        compute(
            out,
            lambda i, j, r: Binary("mul", Load(scores, (i, r)), Load(v, (r, j))),
            reduce=(rows,),
            combiner="sum",
        ),
        out,
    )


def shapes(p: Program) -> list[tuple[int, ...]]:
    return [s.out.shape for s in p.body if isinstance(s, Compute)]


def test_queries_keys_and_values() -> None:
    n = Net()
    p = n.program(attention_inputs(n, n.input(3, 4), 4))
    q = fused(p)
    assert shapes(q) == [(3, 3, 4), (3, 3, 4), (3, 3), (3, 4)]
    assert [w.table for w in q.weights] == [1, 1]
    assert q.weights[0].parts == tuple(w.parts[0] for w in p.weights[::2])


def test_inside_a_rolled_loop() -> None:
    n = Net()
    x = n.input(3, 4)
    for _ in range(4):
        x = n.pointwise("tanh", attention_inputs(n, x, 4))
    p = n.program(x)
    q = roll(p, Options())
    r = fused(q)
    assert_same(p, r)
    assert any(w.table == 2 and w.tensor.shape[:2] == (3, 4) for w in r.weights)


def test_experts_and_towers() -> None:
    n = Net()
    x = n.input(2, 5)
    experts = [
        n.pointwise("tanh", n.pointwise("add", n.linear(x, n.weight(4, 5)), n.weight(4)))
        for _ in range(6)
    ]
    mixed = n.stack(experts)
    outs = []
    for _ in range(2):
        gate = n.linear(x, n.weight(6, 5))
        t = Tensor(n.name("mixture"), (2, 4), F32)

        def body(b, j, e, gate=gate):  # type: ignore[no-untyped-def]
            return Binary("mul", Load(gate, (b, e)), Load(mixed, (e, b, j)))

        n.add(compute(t, body, reduce=(6,), combiner="sum"), t)
        hidden = n.pointwise("tanh", n.linear(t, n.weight(3, 4)))
        outs.append(n.pointwise("tanh", n.linear(hidden, n.weight(1, 3))))
    p = n.program(*outs)
    q = fused(p)
    # experts: product, bias, activation; stack; gates; mixtures; towers: product, tanh, product; two outputs
    assert len(q.body) == 3 + 1 + 1 + 1 + 3 + 2


def test_siblings_that_are_not_ready_together_stay() -> None:
    n = Net()
    x = n.input(2, 4)
    early = n.linear(x, n.weight(4, 4))
    late = n.linear(n.pointwise("tanh", x), n.weight(4, 4))
    p = n.program(n.pointwise("tanh", n.pointwise("add", early, late)))
    assert fuse_horizontally(p) is p


def test_unrelated_pointwise_stay() -> None:
    n = Net()
    x, y = n.input(2, 4), n.input(2, 4)
    a, b = n.pointwise("tanh", x), n.pointwise("tanh", y)
    p = n.program(n.pointwise("exp", n.pointwise("add", a, b)))
    assert fuse_horizontally(p) is p


def test_slices_of_one_weight() -> None:
    n = Net()
    x, w = n.input(3, 4), n.weight(12, 4)
    parts = []
    for k in range(3):
        t = Tensor(n.name("slice"), (3, 4), F32)

        def body(i, j, r, k=k):  # type: ignore[no-untyped-def]
            row = Binary("add", j, idx(4 * k)) if k else j
            return Binary("mul", Load(x, (i, r)), Load(w, (row, r)))

        parts.append(n.add(compute(t, body, reduce=(4,), combiner="sum"), t))
    out = n.pointwise("add", n.pointwise("mul", parts[0], parts[1]), parts[2])
    p = n.program(out)
    assert shapes(fused(p))[0] == (3, 3, 4)


@pytest.mark.parametrize("stored", [False, True])
def test_statistics_of_a_row_that_is_stored(stored: bool) -> None:
    """The keys' norm is a step of the stage that writes their row into a cache; as one of two siblings it would not be."""
    n = Net()
    x, cache = n.input(1, 4), n.input(8, 4)
    q, k = (n.norm(n.linear(x, n.weight(4, 4)), n.weight(4)) for _ in range(2))
    if stored:
        out, axes = Tensor("updated", cache.shape, F32), (Axis("i0", 1), Axis("i1", 4))
        n.add(Scatter(out, cache, axes, (idx(3), axes[1]), Load(k, axes), None), out)
        k = out
    p = n.program(q, k)
    means = [s.out.shape for s in fused(p).body if isinstance(s, Compute) and "mean" in s.out.name]
    assert means == ([(1,), (1,)] if stored else [(2, 1)])
