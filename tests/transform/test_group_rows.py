"""Rows that choose their matrix, in blocks of those that chose the same one."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import (
    Binary,
    CountTensor,
    Expr,
    Load,
    Select,
    SizeTensor,
    Tensor,
    Unary,
    add,
    binary,
    cast,
    const,
    idx,
    mul,
)
from monotile.ir.printer import show
from monotile.ir.program import Compute, Program, Scatter, Statement, compute
from monotile.ir.verify import verify
from monotile.transform.layout.group_rows import group_rows
from monotile.transform.layout.row_groups import BLOCKS
from monotile.transform.live.bound import bound_live

F32, I64 = DType.F32, DType.I64
CHOICES, WIDTH = 5, 32
W, V = (Tensor(n, (CHOICES, WIDTH, WIDTH), F32) for n in "wv")
CHOICE = Tensor("choice", (4, 10), I64)
X = Tensor("x", (4, 10, WIDTH), F32)
At = Callable[[Expr, Expr], Expr]


def product(name: str, x: Tensor, w: Tensor, choice: At, *, swapped: bool = False) -> Compute:
    """Rows along two axes."""

    def term(i: Expr, j: Expr, n: Expr, k: Expr) -> Expr:
        pair = Load(x, (i, j, k)), Load(w, (choice(i, j), n, k))
        return mul(*(reversed(pair) if swapped else pair))

    return compute(Tensor(name, (4, 10, WIDTH), F32), term, reduce=(WIDTH,), combiner="sum")


def chosen(i: Expr, j: Expr) -> Expr:
    return Load(CHOICE, (i, j))


def wrapped(i: Expr, j: Expr) -> Expr:
    """Negative numbers count from the end, of what lies in another order."""
    return binary("mod", add(Load(CHOICE, (i, j)), idx(CHOICES)), idx(CHOICES))


def op(name: str, x: Tensor, op: str = "tanh") -> Compute:
    return compute(Tensor(name, x.shape, F32), lambda *i: Unary(op, Load(x, i)))


def two(choice: At = chosen, *, swapped: bool = False, kept: bool = False) -> Program:
    """A product, what is computed element by element, and another product. kept: the first one is a result."""
    first = product("first", X, W, choice, swapped=swapped)
    middle = op("middle", first.out)
    second = product("second", middle.out, V, choice, swapped=swapped)
    end = op("end", second.out)
    outputs = (end.out, first.out) if kept else (end.out,)
    return Program((X, CHOICE, W, V), (), (first, middle, second, end), outputs)


CHOSEN = {
    "evenly": np.arange(40) % CHOICES,
    "one": np.full(40, 3),
    "at random": np.random.default_rng(1).integers(0, CHOICES, 40),
    "few": np.where(np.arange(40) == 7, 0, 4),
}


def values(choice: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in (X, W, V)}
    return given | {"choice": choice.reshape(CHOICE.shape)}


def agree(program: Program, new: Program, choice: np.ndarray) -> None:
    given = values(choice)
    for got, want in zip(evaluate(new, given), evaluate(program, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


PROGRAMS = {
    "rows first": two(),
    "matrices first": two(swapped=True),
    "kept": two(kept=True),
    "computed": two(wrapped),
}


@pytest.mark.parametrize("choice", CHOSEN)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_means_the_same(name: str, choice: str) -> None:
    program = PROGRAMS[name]
    new = group_rows(program)
    verify(new)
    assert new is not program
    agree(program, new, CHOSEN[choice])


def test_rows_stay_in_blocks_between_products() -> None:
    text = show(group_rows(two()))
    assert "rows_in_blocks_1[i0:7, i1:16, i2:32] f32 = tanh(first_in_blocks[i0, i1, i2])" in text
    assert text.count("second_in_blocks[min(place_of[") == 1
    assert "middle" not in text


@pytest.mark.parametrize("rows", [2, 10])
def test_a_copy_of_the_chosen_matrices_is_not_made(rows: int) -> None:
    """Few rows read their matrices where they lie, many in blocks."""
    x, which = Tensor("x", (rows, WIDTH), F32), Tensor("choice", (rows,), I64)
    copy = compute(
        Tensor("copy", (rows, WIDTH, WIDTH), F32),
        lambda t, *i: Load(W, (Load(which, (t,)), *i)),
    )
    y = compute(
        Tensor("y", (rows, WIDTH), F32),
        lambda t, n, k: mul(Load(copy.out, (t, n, k)), Load(x, (t, k))),
        reduce=(WIDTH,),
        combiner="sum",
    )
    program = Program((x, which, W), (), (copy, y), (y.out,))
    new = group_rows(program)
    assert "copy" not in show(new)
    assert ("in_blocks" in show(new)) is (rows > BLOCKS[0] // 2)
    rng = np.random.default_rng(rows)
    given = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in (x, W)}
    given["choice"] = rng.integers(0, CHOICES, rows)
    for got, want in zip(evaluate(new, given), evaluate(program, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_rows_behind_the_size_of_a_call_choose_nothing() -> None:
    """What they choose may be no matrix at all."""
    size = SizeTensor("n", (), I64, 1, 10)
    program = two()
    program = msgspec.structs.replace(
        program, inputs=(*program.inputs, size), partial=(("", "n", ""),)
    )
    new = group_rows(program)
    verify(new)
    for n in (1, 7, 10):
        given = values(CHOSEN["at random"]) | {"n": np.int64(n)}
        (want,) = evaluate(program, given)
        given["choice"] = given["choice"].copy()
        given["choice"][:, n:] = 2  # in the kernel they are what is left in memory
        (got,) = evaluate(new, given)
        np.testing.assert_allclose(got[:, :n], want[:, :n], rtol=1e-5, atol=1e-5)
        counts = next(s for s in new.body if isinstance(s, Compute) and s.out.name == "chosen")
        shown = Program(new.inputs, (), (counts,), (counts.out,))
        assert evaluate(shown, given)[0].sum() == 4 * n


def test_what_is_updated_meanwhile_is_read_before() -> None:
    """A copy of what a Scatter then writes to."""
    first: list[Statement] = [op("base", W)]
    base = first[0].out  # type: ignore[union-attr]
    copy = compute(
        Tensor("copy", (4, 10, WIDTH, WIDTH), F32), lambda i, j, *k: Load(base, (chosen(i, j), *k))
    )
    axes = two().body[0].axes[:1]  # type: ignore[union-attr]
    write = Scatter(Tensor("written", base.shape, F32), base, axes, (axes[0], idx(0), idx(0)), Load(X, (axes[0], idx(0), idx(0))))  # fmt: skip
    y = compute(
        Tensor("y", (4, 10, WIDTH), F32),
        lambda i, j, n, k: mul(Load(copy.out, (i, j, n, k)), Load(X, (i, j, k))),
        reduce=(WIDTH,),
        combiner="sum",
    )
    program = Program((X, CHOICE, W, V), (), (*first, copy, write, y), (y.out, write.out))
    new = group_rows(program)
    verify(new)
    agree(program, new, CHOSEN["at random"])
    order = [s.out.name for s in new.body if isinstance(s, (Compute, Scatter))]
    reads = [
        s.out.name
        for s in new.body
        if isinstance(s, Compute) and "base[" in show(Program((), (), (s,), ()))
    ]
    assert all(order.index(name) < order.index("written") for name in reads)


def test_small_matrices_and_few_rows_stay() -> None:
    x, w, which = Tensor("x", (40, 4), F32), Tensor("w", (5, 8, 4), F32), Tensor("c", (40,), I64)
    y = compute(
        Tensor("y", (40, 8), F32),
        lambda t, n, k: mul(Load(x, (t, k)), Load(w, (Load(which, (t,)), n, k))),
        reduce=(4,),
        combiner="sum",
    )
    program = Program((x, w, which), (), (y,), (y.out,))
    assert group_rows(program) is program


def test_a_copy_of_another_type_is_read() -> None:
    """It rounds what it copies."""
    x, which = Tensor("x", (2, WIDTH), DType.F16), Tensor("choice", (2,), I64)
    copy = compute(
        Tensor("copy", (2, WIDTH, WIDTH), DType.F16), lambda t, *i: Load(W, (Load(which, (t,)), *i))
    )
    y = compute(
        Tensor("y", (2, WIDTH), F32),
        lambda t, n, k: mul(cast(Load(copy.out, (t, n, k)), F32), cast(Load(x, (t, k)), F32)),
        reduce=(WIDTH,),
        combiner="sum",
    )
    program = Program((x, which, W), (), (copy, y), (y.out,))
    assert group_rows(program) is program


def sorted_rows() -> Program:
    """Rows of one axis, those of a group side by side: number g before `ends[g]`."""
    ends, x = Tensor("ends", (CHOICES,), I64), Tensor("x", (40, WIDTH), F32)
    group = compute(
        Tensor("group", (40,), I64),
        lambda t, g: cast(Binary("le", Load(ends, (g,)), t), I64),
        reduce=(CHOICES,),
        combiner="sum",
    )

    def term(t: Expr, n: Expr, k: Expr) -> Expr:
        own = Binary("min", Load(group.out, (t,)), idx(CHOICES - 1))
        return mul(Load(x, (t, k)), Load(W, (own, n, k)))

    y = compute(Tensor("y", (40, WIDTH), F32), term, reduce=(WIDTH,), combiner="sum")
    return Program((x, ends, W), (), (group, y), (y.out,))


@pytest.mark.parametrize("ends", [(8, 16, 24, 32, 40), (0, 0, 33, 33, 40), (1, 2, 3, 4, 5)])
def test_rows_in_order_are_not_ranked(ends: tuple[int, ...]) -> None:
    """Their numbers say how many of a group are before them."""
    program = sorted_rows()
    new = group_rows(program)
    verify(new)
    made = [s.out.name for s in new.body if isinstance(s, Compute)]
    assert "shift" in made
    assert "rank" not in made
    given = {n: v for n, v in values(CHOSEN["one"]).items() if n == "w"}
    given["x"] = np.random.default_rng(2).standard_normal((40, WIDTH)).astype(np.float32)
    given["ends"] = np.array(ends)
    for got, want in zip(evaluate(new, given), evaluate(program, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_blocks_without_rows_are_not_computed() -> None:
    """As many as have rows, which `live_blocks` says: products, and what is between them. The numbers of their matrices may be anything behind."""
    new = bound_live(group_rows(two()))
    verify(new)
    agree(two(), new, CHOSEN["few"])
    live = {s.out.name for s in new.body if isinstance(s, Compute) and s.live}
    assert {"first_in_blocks", "second_in_blocks", "rows_in_blocks_1", "matrix_of"} <= live
    count = next(s for s in new.body if isinstance(s, Compute) and s.out.name == "live_blocks")
    assert isinstance(count.out, CountTensor)
    assert count.out.usual == 5
    shown = Program(new.inputs, (), new.body, (count.out,))
    assert evaluate(shown, values(CHOSEN["few"]))[0] == 4  # 1 row, and 39 in blocks of 16


def test_one_matrix_is_chosen_by_all() -> None:
    """Sums over all choices have a term."""
    x, which, w = Tensor("x", (40, WIDTH), F32), Tensor("which", (40,), I64), Tensor("w1", (1, WIDTH, WIDTH), F32)  # fmt: skip
    y = compute(
        Tensor("y", (40, WIDTH), F32),
        lambda t, n, k: mul(Load(x, (t, k)), Load(w, (Load(which, (t,)), n, k))),
        reduce=(WIDTH,),
        combiner="sum",
    )
    program = Program((x, which, w), (), (y,), (y.out,))
    new = group_rows(program)
    assert new is not program
    assert all(a.extent for s in new.body if isinstance(s, Compute) for a in s.reduce)
    rng = np.random.default_rng(3)
    given = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in (x, w)}
    given["which"] = np.zeros(40, np.int64)
    for got, want in zip(evaluate(new, given), evaluate(program, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def masked(program: Program, at: int) -> Program:
    """`program` with products whose rows behind a size of the call, along axis `at`, are zeros."""
    size = SizeTensor("n", (), I64, 1, 40)

    def shortened(s: Statement) -> Statement:
        if not isinstance(s, Compute) or not isinstance(s.body, Binary) or s.out.dtype is I64:
            return s
        test = Binary("lt", s.axes[at], Load(size, ()))
        both = (Select(test, x, const(0, x.dtype)) for x in (s.body.a, s.body.b))
        return msgspec.structs.replace(s, body=Binary("mul", *both))

    inputs = (*program.inputs, size)
    return msgspec.structs.replace(program, inputs=inputs, body=tuple(map(shortened, program.body)))


@pytest.mark.parametrize("n", [1, 7, 10])
def test_rows_that_are_zeros_choose_nothing(n: int) -> None:
    program = masked(two(kept=True), 1)
    new = group_rows(program)
    verify(new)
    given = values(CHOSEN["at random"]) | {"n": np.int64(n)}
    for got, want in zip(evaluate(new, given), evaluate(program, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    counts = next(s for s in new.body if isinstance(s, Compute) and s.out.name == "chosen")
    assert evaluate(Program(new.inputs, (), (counts,), (counts.out,)), given)[0].sum() == 4 * n
    assert "where" not in show(new).split("rows_in_blocks_1[")[1].split("\n")[0]


@pytest.mark.parametrize("n", [1, 20, 40])
def test_rows_in_order_with_zeros_behind(n: int) -> None:
    program = masked(sorted_rows(), 0)
    new = group_rows(program)
    verify(new)
    assert "rank" not in [s.out.name for s in new.body if isinstance(s, Compute)]
    given = {k: v for k, v in values(CHOSEN["one"]).items() if k == "w"}
    given["x"] = np.random.default_rng(2).standard_normal((40, WIDTH)).astype(np.float32)
    given |= {"ends": np.array((3, 3, 9, 15, n)), "n": np.int64(n)}
    (got,), (want,) = evaluate(new, given), evaluate(program, given)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 3])
def test_few_rows_keep_their_zeros(rows: int) -> None:
    x, which = Tensor("x", (rows, WIDTH), F32), Tensor("choice", (rows,), I64)
    copy = compute(Tensor("copy", (rows, WIDTH, WIDTH), F32), lambda t, *i: Load(W, (Load(which, (t,)), *i)))  # fmt: skip
    y = compute(
        Tensor("y", (rows, WIDTH), F32),
        lambda t, n, k: mul(Load(copy.out, (t, n, k)), Load(x, (t, k))),
        reduce=(WIDTH,),
        combiner="sum",
    )
    program = masked(Program((x, which, W), (), (copy, y), (y.out,)), 0)
    new = group_rows(program)
    assert "copy" not in show(new)
    rng = np.random.default_rng(rows)
    given = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in (x, W)}
    given |= {"choice": rng.integers(0, CHOICES, rows), "n": np.int64(1)}
    (got,), (want,) = evaluate(new, given), evaluate(program, given)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
