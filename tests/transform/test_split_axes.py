"""Products of which tasks have all that one element of a reader needs: the axis that it reads at distances, or in blocks, is split."""

from collections.abc import Callable

import numpy as np
import pytest

from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Binary, Expr, Load, Select, Tensor, Unary, add, binary, idx, mul
from monotile.ir.printer import show_statement
from monotile.ir.program import Compute, Program, Scatter, Statement, compute
from monotile.ir.verify import verify
from monotile.transform.layout.split_axes import split_axes

F32 = DType.F32
HEADS, SIZE, ROWS = 3, 8, 5
X, W = Tensor("x", (4,), F32), Tensor("w", (HEADS * SIZE, 4), F32)
CACHE = Tensor("cache", (HEADS, ROWS, SIZE), F32)
P = compute(
    Tensor("p", (HEADS * SIZE,), F32),
    lambda i, r: Binary("mul", Load(X, (r,)), Load(W, (i, r))),
    reduce=(4,),
    combiner="sum",
)


def at(head: Expr, i: Expr, more: int = 0) -> Load:
    return Load(P.out, (add(add(mul(head, idx(SIZE)), i), idx(more)),))


def halves(head: Expr, i: Expr) -> Expr:
    """Elements of a head, each with that half a head away."""
    n = SIZE // 2
    other = Select(
        Binary("lt", i, idx(n)), Unary("neg", at(head, i, n)), at(head, Binary("sub", i, idx(n)))
    )
    return Binary("add", at(head, i), other)


def pairs(head: Expr, i: Expr) -> Expr:
    """Elements of a head, each with its neighbour in pairs."""
    first = mul(binary("floordiv", i, idx(2)), idx(2))
    even = Binary("lt", binary("mod", i, idx(2)), idx(1))
    other = Select(even, Unary("neg", at(head, first, 1)), at(head, first))
    return Binary("add", at(head, i), other)


def half_of(head: Expr, i: Expr) -> Expr:
    """The same in the first half of a head; the others as they are."""
    n = SIZE // 4
    away = Binary("sub", i, idx(n))
    turned = Select(Binary("lt", i, idx(n)), Unary("neg", at(head, i, n)), at(head, away))
    return Select(Binary("lt", i, idx(2 * n)), Binary("add", at(head, i), turned), at(head, i))


Form = Callable[[Expr, Expr], Expr]
SPLITS: dict[str, tuple[Form, tuple[int, ...]]] = {
    "halves": (halves, (HEADS, 2, 4)),
    "pairs": (pairs, (HEADS, 4, 2)),
    "a part": (half_of, (HEADS, 4, 2)),
}


def rotated(form: Form) -> Compute:
    return compute(Tensor("q", (HEADS, SIZE), F32), form)


def scattered(form: Form) -> Scatter:
    axes = rotated(form).axes
    out, index = Tensor("new", CACHE.shape, F32), (axes[0], idx(2), axes[1])
    return Scatter(out, CACHE, axes, index, form(*axes), None)


def total(t: Tensor) -> Compute:
    """Each head's sum: a reader that needs the tensor in its old order."""
    return compute(Tensor("t", (HEADS,), F32), lambda h, r: Load(t, (h, r)), reduce=(SIZE,), combiner="sum")  # fmt: skip


def program(*body: Statement, outputs: tuple[Tensor, ...]) -> Program:
    return Program((X, W, CACHE), (), (P, *body), outputs)


def same(before: Program, after: Program) -> None:
    verify(after)
    rng = np.random.default_rng(0)
    values = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in before.inputs}
    for a, b in zip(evaluate(before, values), evaluate(after, values), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", SPLITS)
def test_a_reader_in_the_same_tasks(name: str) -> None:
    form, shape = SPLITS[name]
    q = rotated(form)
    before = program(q, total(q.out), outputs=(Tensor("t", (HEADS,), F32),))
    after = split_axes(before, P)
    assert after is not None
    assert [s.out.shape for s in after.body if isinstance(s, Compute)] == [shape, shape, (HEADS,)]
    same(before, after)


@pytest.mark.parametrize("name", SPLITS)
def test_a_cache_keeps_its_order(name: str) -> None:
    form, shape = SPLITS[name]
    s = scattered(form)
    before = program(s, outputs=(s.out,))
    after = split_axes(before, P)
    assert after is not None
    _, new = after.body
    assert isinstance(new, Scatter)
    assert new.out == s.out
    assert tuple(a.extent for a in new.axes) == shape
    same(before, after)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_of_a_cache_are_heads(interleaved: bool) -> None:
    """Keys that are written as they are, from a product of their own or in which each head has its queries beside them."""
    size, first = (SIZE // 2, SIZE // 2) if interleaved else (SIZE, 0)
    cache = Tensor("cache", (HEADS, ROWS, size), F32)
    axes = compute(Tensor("q", (HEADS, size), F32), at).axes
    out = Tensor("new", cache.shape, F32)
    s = Scatter(out, cache, axes, (axes[0], idx(2), axes[1]), at(*axes, first), None)
    before = Program((X, W, cache), (), (P, s), (out,))
    after = split_axes(before, P)
    assert after is not None
    product, new = after.body
    assert isinstance(product, Compute)
    assert product.out.shape == ((HEADS, 2, size) if interleaved else (HEADS, size))
    assert isinstance(new, Scatter)
    assert tuple(a.extent for a in new.axes) == (HEADS, size)
    same(before, after)


def test_its_text() -> None:
    q = rotated(halves)
    after = split_axes(program(q, total(q.out), outputs=(Tensor("t", (HEADS,), F32),)), P)
    assert after is not None
    assert [line for s in after.body for line in show_statement(s)] == [
        "p[i0:3, i1:2, i2:4] f32 = sum(r0:4) x[r0] * w[i0 * 8 + i1 * 4 + i2, r0]",
        "q[i0:3, i1:2, i2:4] f32 = p[i0, i1, i2] + where(i1 < 1, -p[i0, 1, i2], p[i0, 0, i2])",
        "t[i0:3] f32 = sum(r0:8) q[i0, r0 // 4, r0 % 4]",
    ]


def test_a_gate_in_the_same_product() -> None:
    n = HEADS * SIZE // 2
    y = compute(
        Tensor("y", (n,), F32),
        lambda i: Binary("mul", Load(P.out, (i,)), Load(P.out, (add(i, idx(n)),))),
    )
    z = compute(Tensor("z", (), F32), lambda r: Load(y.out, (r,)), reduce=(n,), combiner="sum")
    before = program(y, z, outputs=(z.out,))
    after = split_axes(before, P)
    assert after is not None
    assert [s.out.shape for s in after.body if isinstance(s, Compute)] == [(2, n), (n,), ()]
    same(before, after)


def test_what_stays() -> None:
    q = rotated(halves)
    plain = compute(Tensor("q", (HEADS, SIZE), F32), at)
    shifted = compute(
        Tensor("q", (HEADS * SIZE - 1,), F32),
        lambda i: Binary("add", Load(P.out, (i,)), Load(P.out, (add(i, idx(1)),))),
    )
    assert split_axes(program(q, outputs=(q.out, P.out)), P) is None  # the product is a result
    assert split_axes(program(q, outputs=(q.out,)), P) is None  # its reader is one
    assert split_axes(program(plain, outputs=(plain.out,)), P) is None  # nothing is far away
    assert split_axes(program(shifted, outputs=(shifted.out,)), P) is None  # all is next to all
