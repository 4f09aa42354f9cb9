"""Products that are read in slices, as the gates of a cell are."""

from collections.abc import Callable

import numpy as np
import pytest

from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Expr, Load, Select, Tensor, Unary, add, binary, idx, mul
from monotile.ir.printer import show_statement
from monotile.ir.program import Program, compute
from monotile.ir.verify import verify
from monotile.transform.layout.split_slices import split_slices

F32 = DType.F32
X, W = Tensor("x", (6,), F32), Tensor("w", (12, 6), F32)
GATES = compute(
    Tensor("gates", (1, 12), F32),
    lambda _, n, r: mul(Load(X, (r,)), Load(W, (n, r))),
    reduce=(6,),
    combiner="sum",
)


def gate(k: int, i: Expr) -> Expr:
    return Load(GATES.out, (idx(0), add(i, idx(4 * k))))


def test_slices_get_an_axis() -> None:
    y = compute(Tensor("y", (4,), F32), lambda i: mul(gate(0, i), Unary("tanh", gate(2, i))))
    z = compute(Tensor("z", (4,), F32), lambda i: add(gate(1, i), Load(y.out, (i,))))
    program = Program((X, W), (), (GATES, y, z), (z.out,))
    new = split_slices(program)
    verify(new)
    assert [line for s in new.body for line in show_statement(s)] == [
        "gates[i0:1, i1:3, i2:4] f32 = sum(r0:6) x[r0] * w[i1 * 4 + i2, r0]",
        "y[i0:4] f32 = gates[0, 0, i0] * tanh(gates[0, 2, i0])",
        "z[i0:4] f32 = gates[0, 1, i0] + y[i0]",
    ]
    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-4, 4, t.shape).astype(np.float32) for t in (X, W)}
    np.testing.assert_array_equal(evaluate(new, values)[0], evaluate(program, values)[0])
    assert split_slices(new) is new


def test_heads_of_an_epilogue_and_their_halves() -> None:
    """Three slices of two heads, of which each element of one reads another of its head, as rotary embeddings do."""
    qkv = compute(Tensor("qkv", (1, 12), F32), lambda i, n: Unary("tanh", Load(GATES.out, (i, n))))

    def at(begin: int, h: Expr, i: Expr) -> Expr:
        return Load(qkv.out, (idx(0), add(add(mul(h, idx(2)), i), idx(begin))))

    def turned(h: Expr, i: Expr) -> Expr:
        other = Select(binary("lt", i, idx(1)), at(1, h, i), at(-1, h, i))
        return add(add(at(0, h, i), other), mul(at(4, h, i), at(8, h, i)))

    y = compute(Tensor("y", (2, 2), F32), turned)
    program = Program((X, W), (), (GATES, qkv, y), (y.out,))
    new = split_slices(program)
    verify(new)
    assert [line for s in new.body for line in show_statement(s)] == [
        "gates[i0:1, i1:3, i2:2, i3:2] f32 = sum(r0:6) x[r0] * w[i1 * 4 + i2 * 2 + i3, r0]",
        "qkv[i0:1, i1:3, i2:2, i3:2] f32 = tanh(gates[0, i1, i2, i3])",
        "y[i0:2, i1:2] f32 = qkv[0, 0, i0, i1] + where(i1 < 1, qkv[0, 0, i0, 1], qkv[0, 0, i0, 0]) + qkv[0, 1, i0, i1] * qkv[0, 2, i0, i1]",
    ]
    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-4, 4, t.shape).astype(np.float32) for t in (X, W)}
    np.testing.assert_array_equal(evaluate(new, values)[0], evaluate(program, values)[0])


def test_fewer_heads_are_a_product_of_their_own() -> None:
    def at(begin: int, h: Expr, i: Expr) -> Expr:
        return Load(GATES.out, (idx(0), add(add(mul(h, idx(2)), i), idx(begin))))

    y = compute(Tensor("y", (4, 2), F32), lambda h, i: at(0, h, i))
    z = compute(Tensor("z", (1, 2, 2), F32), lambda _, h, i: mul(at(8, h, i), at(8, h, i)))
    program = Program((X, W), (), (GATES, y, z), (y.out, z.out))
    new = split_slices(program)
    verify(new)
    assert [line for s in new.body for line in show_statement(s)] == [
        "gates[i0:1, i1:1, i2:4, i3:2] f32 = sum(r0:6) x[r0] * w[i2 * 2 + i3, r0]",
        "gates_1[i0:1, i1:1, i2:2, i3:2] f32 = sum(r0:6) x[r0] * w[i2 * 2 + i3 + 8, r0]",
        "y[i0:4, i1:2] f32 = gates[0, 0, i0, i1]",
        "z[i0:1, i1:2, i2:2] f32 = gates_1[0, 0, i1, i2] * gates_1[0, 0, i1, i2]",
    ]
    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-4, 4, t.shape).astype(np.float32) for t in (X, W)}
    for a, b in zip(evaluate(new, values), evaluate(program, values), strict=True):
        np.testing.assert_array_equal(a, b)


def test_slices_of_other_widths_are_products_of_their_own() -> None:
    def at(begin: int, i: Expr) -> Expr:
        return Load(GATES.out, (idx(0), add(i, idx(begin))))

    y = compute(Tensor("y", (7,), F32), lambda i: Unary("tanh", at(3, i)))
    z = compute(
        Tensor("z", (3,), F32),
        lambda i: mul(at(0, i), add(at(10, binary("mod", i, idx(2))), idx(0))),
    )
    program = Program((X, W), (), (GATES, y, z), (y.out, z.out))
    assert split_slices(program) is program  # the last is read in another way
    z = compute(Tensor("z", (3,), F32), lambda i: at(0, i))
    last = compute(Tensor("last", (2,), F32), lambda i: at(10, i))
    program = Program((X, W), (), (GATES, y, z, last), (y.out, z.out, last.out))
    new = split_slices(program)
    verify(new)
    assert [s.out.shape for s in new.body if s.reduce] == [(1, 1, 3), (1, 1, 7), (1, 1, 2)]
    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-4, 4, t.shape).astype(np.float32) for t in (X, W)}
    for a, b in zip(evaluate(new, values), evaluate(program, values), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_reads_into_other_heads_stays() -> None:
    """No condition keeps it in its slices, which would be another product."""

    def at(begin: int, h: Expr, i: Expr) -> Expr:
        return Load(GATES.out, (idx(0), add(add(mul(h, idx(2)), i), idx(begin))))

    y = compute(Tensor("y", (4, 2), F32), lambda h, i: add(at(0, h, i), at(1, h, i)))
    z = compute(Tensor("z", (2, 2), F32), lambda h, i: at(8, h, i))
    program = Program((X, W), (), (GATES, y, z), (y.out, z.out))
    assert split_slices(program) is program


def halves(i: Expr) -> Expr:
    """Only two of three slices."""
    return mul(gate(0, i), gate(1, i))


def whole(i: Expr) -> Expr:
    every = Load(GATES.out, (idx(0), mul(Axis("i0", 4), idx(3))))
    return add(add(halves(i), gate(2, i)), every)


def uneven(i: Expr) -> Expr:
    return add(add(halves(i), gate(2, i)), Load(GATES.out, (idx(0), add(i, idx(3)))))


@pytest.mark.parametrize("read", [halves, whole, uneven])
def test_what_is_read_in_other_ways_stays(read: Callable[[Expr], Expr]) -> None:
    y = compute(Tensor("y", (4,), F32), read)
    program = Program((X, W), (), (GATES, y), (y.out,))
    assert split_slices(program) is program


def test_results_and_several_rows_stay() -> None:
    y = compute(Tensor("y", (4,), F32), lambda i: add(halves(i), gate(2, i)))
    program = Program((X, W), (), (GATES, y), (y.out, GATES.out))
    assert split_slices(program) is program
    v, two = Tensor("v", (2, 4), F32), Tensor("two", (2, 4), F32)
    rows = compute(two, lambda i, j: Unary("tanh", Load(v, (i, j))))
    z = compute(
        Tensor("z", (2, 2), F32),
        lambda i, j: add(Load(two, (i, j)), Load(two, (i, add(j, idx(2))))),
    )
    program = Program((v,), (), (rows, z), (z.out,))
    assert split_slices(program) is program
