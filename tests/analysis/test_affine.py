"""Sums of quotients and remainders, put together again."""

import pytest

from monotile.analysis.affine import affine, offset
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, binary, idx

ROW = Axis("i", 200)


def floordiv(x: Expr, n: int) -> Expr:
    return binary("floordiv", x, idx(n))


def mod(x: Expr, n: int) -> Expr:
    return binary("mod", x, idx(n))


@pytest.mark.parametrize("first", [0, 1, 4, 6, 17, 24, 113])
def test_a_flat_position_behind_others(first: int) -> None:
    """What a concatenation reads of [5, 4, 6] from `first` on: each dimension's index has a start of its own, the sum of all has one."""
    at = add(ROW, idx(-first)) if first else ROW
    index: tuple[Expr, ...] = (floordiv(at, 24), mod(floordiv(at, 6), 4), mod(at, 6))
    plain = tuple(affine(i).expr for i in index)
    assert offset(Load(Tensor("x", (9, 4, 6), DType.F32), plain)) == affine(at)


@pytest.mark.parametrize(("by", "shift", "then"), [(6, 6, 19), (4, 2, 3), (2, 1, 2)])
def test_a_quotient_of_a_shifted_quotient(by: int, shift: int, then: int) -> None:
    """(i // by + shift) // then is one quotient."""
    found = affine(floordiv(add(floordiv(ROW, by), idx(shift)), then))
    (((atom, _),), constant) = found.terms, found.constant
    assert found == affine(floordiv(add(ROW, idx(shift * by)), by * then))
    assert atom != floordiv(ROW, by)
    for i in range(ROW.extent):
        rest = (shift * by) % (by * then)
        assert (i // by + shift) // then == (i + rest) // (by * then) + constant
