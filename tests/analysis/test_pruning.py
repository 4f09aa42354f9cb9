"""Factors of dimensions, what joins them, and what parameters' zeros make dead."""

import numpy as np
import pytest

from monotile.analysis.pruning.classes import Classes
from monotile.analysis.pruning.coordinates import along, reached
from monotile.analysis.pruning.factors import Factors
from monotile.analysis.pruning.facts import Zeros, facts_of
from monotile.analysis.pruning.known import Along, Known
from monotile.analysis.pruning.removal import removal
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Tensor, Unary, add, const, idx, mul
from monotile.ir.program import Program, Weight, compute

F32 = DType.F32
X, W = Tensor("x", (4, 6), F32), Tensor("w", (3 * 4 * 8, 6), F32)


def fused(read: str = "slices") -> Program:
    """Four heads of eight, whose queries and keys are parts of one product."""
    qkv, s = Tensor("qkv", (4, 96), F32), Tensor("s", (4, 4, 4), F32)
    product = compute(
        qkv,
        lambda i, c, k: mul(Load(X, (i, k)), Load(W, (c, k))),
        reduce=(6,),
        combiner="sum",
    )

    def at(h: Expr, d: Expr, part: int) -> Expr:
        return add(add(mul(h, idx(8)), d), idx(32 * part if read == "slices" else 5 * part))

    scores = compute(
        s,
        lambda h, i, j, d: mul(Load(qkv, (i, at(h, d, 0))), Load(qkv, (j, at(h, d, 1)))),
        reduce=(8,),
        combiner="sum",
    )
    total = compute(
        Tensor("total", (4, 4), F32),
        lambda i, j, h: Load(s, (h, i, j)),
        reduce=(4,),
        combiner="sum",
    )
    return Program((X,), (Weight(W, ("w",)),), (product, scores, total), (total.out,))


def test_slices_and_heads_are_factors() -> None:
    factors = Factors(fused())
    assert factors.of(("qkv", 1)) == factors.of(("w", 0)) == (3, 4, 8)
    assert factors.of(("s", 0)) == (4,)
    assert factors.of(("qkv", 0)) == (4,)


def test_heads_are_a_class() -> None:
    program = fused()
    classes = Classes(program, Factors(program))
    (heads,) = [m for m in classes.members if ("w", 0, 1) in m]
    assert {("qkv", 1, 1), ("s", 0, 0), ("total", 2, 0)} <= {*heads}
    assert classes.units(heads) == 4
    assert not any(("x", 1, 0) in m for m in classes.members)  # an input keeps its shape


def test_what_does_not_divide_is_pinned() -> None:
    program = fused("overlapping")
    classes = Classes(program, Factors(program))
    assert not any(f[:2] == ("w", 0) for m in classes.members for f in m)


@pytest.mark.parametrize("part", [0, 1])
def test_a_head_is_dead_if_one_factor_of_its_scores_is_zero(part: int) -> None:
    values = np.ones(W.shape, np.float32)
    values[32 * part + 8 : 32 * part + 24] = 0
    found = removal(fused(), facts_of({"w": values}))
    assert found.coordinates(("w", 0)).tolist() == [
        32 * p + 8 * h + d for p in range(3) for h in (0, 3) for d in range(8)
    ]
    assert found.dimensions[("s", 0)] == (2,)


def test_never_all_and_a_multiple_of_16_features() -> None:
    found = removal(fused(), facts_of({"w": np.zeros(W.shape, np.float32)}))
    assert found.dimensions[("s", 0)] == (2,)
    assert found.dimensions[("w", 0)] == (3, 2, 8)


def test_nothing_is_zero() -> None:
    assert not removal(fused(), facts_of({"w": np.ones(W.shape, np.float32)})).kept


class _Given:
    """A vector of which some elements are known."""

    def silent(self, tensor: Tensor) -> bool:
        return tensor.name != "v"

    def known(self, load: Load, d: int, live: object) -> Known | None:
        return Known(np.array([True, True, False, True]), np.array([0, -2, 9, 1], np.float32))


@pytest.mark.parametrize(
    ("make", "where", "value"),
    [
        (lambda v, u: mul(v, u), [1, 0, 0, 0], [0, 0, 0, 0]),
        (lambda v, u: Binary("max", v, const(0.0, F32)), [1, 1, 0, 1], [0, 0, 0, 1]),
        (lambda v, u: add(v, u), [0, 0, 0, 0], [0, 0, 0, 0]),
        (lambda v, u: Binary("div", v, u), [1, 0, 0, 0], [0, 0, 0, 0]),
        (lambda v, u: Unary("log", v), [0, 0, 0, 1], [0, 0, 0, 0]),
        (
            lambda v, u: Select(Binary("lt", v, const(0.0, F32)), v, mul(u, const(0.0, F32))),
            [1, 1, 0, 1],
            [0, -2, 0, 0],
        ),
    ],
)
def test_what_is_known_of_an_expression(
    make: "object", where: list[int], value: list[float]
) -> None:
    axis = Axis("i0", 4)
    v, u = Load(Tensor("v", (4,), F32), (axis,)), Load(Tensor("u", (4,), F32), (axis,))
    assert callable(make)
    found = Along(axis, {"i0": np.ones(4, bool)}, _Given()).of(make(v, u))
    assert found.where.astype(int).tolist() == where
    assert np.where(found.where, found.value, 0).tolist() == value


def test_coordinates_of_an_index() -> None:
    h, d = Axis("h", 3), Axis("d", 2)
    live = {"h": np.array([True, False, True]), "d": np.ones(2, bool)}
    index = add(mul(h, idx(2)), d)
    assert np.flatnonzero(reached(index, 6, live)).tolist() == [0, 1, 4, 5]
    rows = along(index, d, live)
    assert rows is not None
    assert rows.tolist() == [[0, 4], [1, 5]]
    gathered = Load(Tensor("ids", (3,), DType.I64), (h,))
    assert reached(gathered, 4, live).all()


def test_facts_of_a_permuted_parameter() -> None:
    x = np.array([[0, 1, 0], [0, 2, 3]], np.float32)
    (zeros,) = facts_of({"w": x}).values()
    assert zeros.mask.tolist() == (x == 0).tolist()
    assert zeros.permuted((1, 0)).mask.tolist() == (x.T == 0).tolist()
    (vector,) = facts_of({"b": np.array([[1.0, np.nan, 0.0]])}).values()
    assert vector == Zeros((1, 3), values=(1.0, None, 0.0))
    assert not facts_of({"ids": np.zeros(3, np.int64)})
