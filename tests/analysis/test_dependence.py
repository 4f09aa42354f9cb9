"""Which elements an element needs."""

import pytest

from monotile.analysis.dependence import Form, dependences, form, independent
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, add, idx, mul
from monotile.ir.program import Compute, Program, compute

F32 = DType.F32
X = Tensor("x", (4, 6), F32)
IDS = Tensor("ids", (4,), DType.I64)
I, J, K = Axis("i", 4), Axis("j", 6), Axis("k", 3)  # noqa: E741


def reads(shape: tuple[int, ...], *index: Expr, reduce: tuple[int, ...] = ()) -> Compute:
    return compute(
        Tensor("y", shape, F32),
        lambda *_: Load(X, index),
        reduce=reduce,
        combiner="sum" if reduce else None,
    )


def i(k: int, n: int) -> Axis:
    return Axis(f"i{k}", n)


CASES: dict[Form, Compute] = {
    "identity": reads((4, 6), i(0, 4), i(1, 6)),
    "permuted": reads((6, 4), i(1, 4), i(0, 6)),
    "injective": reads((4, 3), i(0, 4), mul(i(1, 3), idx(2))),
    "broadcast": reads((4, 6, 5), i(0, 4), i(1, 6)),
    "gather": reads((4, 6), Load(IDS, (i(0, 4),)), i(1, 6)),
    "reduction": reads((4,), i(0, 4), Axis("r0", 6), reduce=(6,)),
}


@pytest.mark.parametrize("wanted", CASES)
def test_forms(wanted: Form) -> None:
    assert form(CASES[wanted], "x") == wanted


def test_a_stencil() -> None:
    s = compute(
        Tensor("y", (4, 5), F32),
        lambda i, j: Binary("add", Load(X, (i, j)), Load(X, (i, add(j, idx(1))))),
    )
    assert form(s, "x") == "stencil"


def test_edges_of_a_program() -> None:
    body = CASES["gather"]
    found = list(dependences(Program((X, IDS), (), (body,), (body.out,))))
    assert [(d.tensor, d.reader, d.form, d.one_on_one) for d in found] == [
        ("x", "y", "gather", False),
        ("ids", "y", "broadcast", True),
    ]


@pytest.mark.parametrize(
    ("index", "known"),
    [
        ((I, J), {0, 1}),
        ((add(mul(I, idx(6)), J),), {0, 1}),
        ((add(mul(I, idx(5)), J),), set()),  # 5 = one step of I or five of J
        ((add(I, J),), set()),
        ((Load(IDS, (I,)), J), {1}),
        ((Load(IDS, (idx(0),)), J), {1}),
        ((add(Load(IDS, (idx(0),)), mul(I, idx(2))),), {0}),
        ((Binary("mod", I, idx(2)), J), {1}),
        ((Binary("sub", idx(3), I),), {0}),
        ((idx(0),), set()),
    ],
)
def test_axes_that_an_index_determines(index: tuple[Expr, ...], known: set[int]) -> None:
    assert independent(index, (I, J)) == known


def test_an_axis_of_one_element_is_always_determined() -> None:
    assert independent((K,), (K, Axis("u", 1))) == {0, 1}
