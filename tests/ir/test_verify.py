"""What the verifier refuses, and how it says so."""

from collections.abc import Callable

import msgspec
import pytest

from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    const,
    idx,
)
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Stack,
    Statement,
    Weight,
    compute,
)
from monotile.ir.verify import verify

F16, F32, I64, BOOL = DType.F16, DType.F32, DType.I64, DType.BOOL
X, W, N = Tensor("x", (4, 3), F32), Tensor("w", (2, 3), F32), Tensor("n", (5,), I64)
P = Tensor("p", (), BOOL)
Y = Tensor("y", (4, 3), F32)


def program(*body: Statement, outputs: tuple[Tensor, ...] = ()) -> Program:
    return Program((X, N, P), (Weight(W, ("a", "b"), 1),), body, outputs)


def refuse(bad: Program, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(bad)


def test_a_good_program_passes() -> None:
    s = compute(
        Y, lambda i, j: Binary("mul", Load(X, (i, j)), Load(W, (Binary("mod", i, idx(2)), j)))
    )
    verify(program(s, outputs=(Y,)))


def test_names_are_defined_once_and_before_their_use() -> None:
    s = compute(Y, lambda i, j: Load(X, (i, j)))
    refuse(program(s, s), "statement 1, Compute of 'y': 'y' is defined twice")
    refuse(program(compute(X, lambda i, j: const(0.0, F32))), "'x' is defined twice")
    later = compute(Tensor("z", (4, 3), F32), lambda i, j: Load(Y, (i, j)))
    refuse(program(later, s), "statement 0, Compute of 'z': 'y' is used where it is not defined")
    refuse(program(outputs=(Y,)), "output 'y': 'y' is used where it is not defined")
    other = Tensor("x", (4, 3), F16)
    refuse(
        program(compute(Y, lambda i, j: Cast(Load(other, (i, j)), F32))),
        r"'x' is used as f16\[4, 3\] and defined as f32\[4, 3\]",
    )


def test_the_message_holds_the_users_line() -> None:
    s = compute(Y, lambda i, j: Load(X, (i,)), origin="model.py:3, in forward")
    refuse(
        program(s),
        r"Compute of 'y' \(model.py:3, in forward\): 1 indices for 2 dimensions: x\[i0\]",
    )


BAD: dict[str, tuple[Callable[[Expr, Expr], Expr], str]] = {
    "sides": (
        lambda i, j: Binary("add", Load(X, (i, j)), const(1, I64)),
        "the sides are float32 and int64",
    ),
    "index type": (lambda i, j: Load(X, (Cast(i, DType.I32), j)), "an index is int32, not int64"),
    "condition": (
        lambda i, j: Select(i, const(0.0, F32), const(0.0, F32)),
        "the condition is int64",
    ),
    "select": (
        lambda i, j: Select(const(True, BOOL), const(0.0, F32), i),
        "the sides are float32 and int64",
    ),
    "unary": (lambda i, j: Unary("exp", i), "no 'exp' of int64"),
    "binary": (lambda i, j: Binary("div", i, j), "no 'div' of int64"),
    "logic": (lambda i, j: Binary("and", i, j), "no 'and' of int64"),
    "bool sum": (
        lambda i, j: Binary("add", const(True, BOOL), const(True, BOOL)),
        "no 'add' of bool",
    ),
    "bits": (lambda i, j: Binary("shl", const(True, BOOL), const(True, BOOL)), "no 'shl' of bool"),
    "unknown": (lambda i, j: Binary("plus", i, j), "no 'plus' of int64"),
    "axis": (lambda i, j: Cast(Axis("k", 3), F32), "axis 'k' is not known here"),
    "axis extent": (lambda i, j: Cast(Axis("i0", 9), F32), "axis 'i0' is not known here"),
    "literal": (lambda i, j: Const(300, DType.U8), "300 is no literal of uint8"),
    "literal type": (lambda i, j: Const(0.5, I64), "0.5 is no literal of int64"),
    "infinity": (lambda i, j: Const(float("inf"), F32), "inf is no literal of float32"),
}


@pytest.mark.parametrize("case", BAD)
def test_expressions(case: str) -> None:
    body, message = BAD[case]
    refuse(program(compute(Y, body)), f"statement 0, Compute of 'y': .*{message}")


def test_combiners() -> None:
    value = lambda i, j, r: Load(X, (i, j))  # noqa: E731
    refuse(program(compute(Y, value, reduce=(2,), combiner="any")), "'any' of float32")
    refuse(program(compute(Y, value, reduce=(2,), combiner="mean")), "unknown combiner 'mean'")
    refuse(program(compute(Y, value, reduce=(2,))), "reduce axes without a combiner")
    truth = lambda i, j, r: const(True, BOOL)  # noqa: E731
    refuse(program(compute(Y, truth, reduce=(2,), combiner="sum")), "'sum' of bool")


def test_axes_give_the_shape() -> None:
    s = compute(Y, lambda i, j: const(0.0, F32))
    short = msgspec.structs.replace(s, axes=(Axis("i0", 4), Axis("i1", 2)))
    refuse(program(short), r"axes \(4, 2\) do not give the shape \(4, 3\)")
    twice = msgspec.structs.replace(s, out=Tensor("y", (4, 4), F32), axes=(Axis("i0", 4),) * 2)
    refuse(program(twice), "axis 'i0' appears twice")


def test_a_table_has_as_many_parts_as_entries() -> None:
    refuse(Program((), (Weight(W, ("a",), 1),), (), ()), "weight 'w': it has 1 parts, its table 2")
    refuse(Program((), (Weight(W, ("a",), 3),), (), ()), "more dimensions than it")


def test_an_index_proven_out_of_bounds() -> None:
    shifted = compute(Y, lambda i, j: Load(X, (Binary("add", i, idx(1)), j)))
    refuse(program(shifted), "dimension 0: index 4 is out of range for x of extent 4")

    def guard(n: int) -> Callable[[Expr, Expr], Expr]:
        return lambda i, j: Select(
            Binary("lt", i, idx(n)), Load(X, (Binary("add", i, idx(1)), j)), const(0.0, F32)
        )

    verify(program(compute(Y, guard(3))))
    refuse(program(compute(Y, guard(4))), "index 4 is out of range")


def test_correlated_indices_are_no_false_alarm() -> None:
    # Intervals alone see i0 * 2 - i0 from -3 to 6.
    s = compute(Y, lambda i, j: Load(X, (Binary("sub", Binary("mul", i, idx(2)), i), j)))
    verify(program(s))


def test_an_index_from_data_is_left_to_the_run() -> None:
    verify(program(compute(Y, lambda i, j: Load(X, (Load(N, (i,)), j)))))


def test_large_index_spaces_are_sampled_at_their_corners() -> None:
    big = Tensor("big", (1 << 40,), F32)
    y = Tensor("y", (1 << 20, 1 << 20), F32)
    s = compute(
        y,
        lambda i, j: Load(
            big, (Binary("add", Binary("mul", i, idx(1 << 20)), Binary("add", j, idx(1))),)
        ),
    )
    refuse(Program((big,), (), (s,), ()), "index 1099511627776 is out of range")


def test_scatter() -> None:
    axis = Axis("i0", 4)
    good = Scatter(Y, X, (axis,), (axis, idx(0)), const(1.0, F32))
    verify(program(good))
    replace = msgspec.structs.replace
    refuse(program(replace(good, index=(axis,))), "1 indices for 2 dimensions")
    refuse(program(replace(good, index=(axis, idx(3)))), "index 3 is out of range")
    refuse(program(replace(good, combiner="argmax")), "a Scatter cannot combine with 'argmax'")
    refuse(program(replace(good, combiner="any")), "'any' of float32")
    refuse(program(replace(good, base=N)), r"'n' is i64\[5\], 'y' is f32\[4, 3\]")


def loop(**changes: object) -> Loop:
    """y = x doubled three times."""
    axis = Axis("l", 3)
    param, result, out = (Tensor(k, (4, 3), F32) for k in ("c", "d", "e"))
    body = compute(result, lambda i, j: Binary("add", Load(param, (i, j)), Load(param, (i, j))))
    stack = Stack(result, Tensor("all", (3, 4, 3), F32))
    whole = Loop(axis, (Carry(X, param, result, out),), (stack,), (body,))
    return msgspec.structs.replace(whole, **changes)


def test_loops() -> None:
    good = loop()
    out = good.carried[0].out
    verify(program(good, outputs=(out, good.stacked[0].out)))
    refuse(program(good, outputs=(good.carried[0].result,)), "'d' is used where it is not defined")
    small = Stack(good.stacked[0].value, Tensor("all", (2, 4, 3), F32))
    refuse(program(loop(stacked=(small,))), r"stack 'all' is f32\[2, 4, 3\], not f32\[3, 4, 3\]")
    carry = msgspec.structs.replace(good.carried[0], init=N)
    refuse(program(loop(carried=(carry,))), r"'n' is i64\[5\], 'c' is f32\[4, 3\]")
    refuse(program(loop(count=N)), r"its count is i64\[5\], not a scalar int64")
    refuse(program(loop(predicate=X)), "its predicate is .* not a scalar bool")
    refuse(program(loop(predicate=P)), "its predicate 'p' is no carry's result")
    nested = loop(body=(loop(carried=(), stacked=(), body=()), *good.body))
    refuse(program(nested), "axis 'l' is an enclosing loop's as well")
    refuse(program(loop(body=())), "statement 0, Loop over 'l': 'd' is used where it is not")


def test_a_branch_sees_its_own_side() -> None:
    a, b, y = (Tensor(k, (), F32) for k in "aby")
    one = compute(a, lambda: const(1.0, F32))
    two = compute(b, lambda: const(2.0, F32))
    verify(program(Branch(P, (one,), (two,), (BranchOut(a, b, y),)), outputs=(y,)))
    refuse(program(Branch(P, (one,), (two,), (BranchOut(b, a, y),))), "'b' is used where it is not")
    refuse(program(Branch(N, (one,), (two,), ())), r"its predicate is i64\[5\]")
    other = BranchOut(a, b, Tensor("y", (), F16))
    refuse(program(Branch(P, (one,), (two,), (other,))), "'a' is f32, 'y' is f16")


def test_a_compute_is_not_a_view_of_itself() -> None:
    s: Compute = compute(Y, lambda i, j: Load(Y, (i, j)))
    refuse(program(s), "'y' is used where it is not defined")
