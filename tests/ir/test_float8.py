"""8-bit floats in the language: what their values are, and what takes them."""

import msgspec
import numpy as np
import pytest

from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Binary, Cast, Const, Expr, Load, Select, Tensor, Unary, cast, const
from monotile.ir.intervals import interval
from monotile.ir.printer import show
from monotile.ir.program import Program, compute
from monotile.ir.verify import verify
from monotile.transform.simplify.simplify import lossless, simplify_expr
from tests.ir.float8 import CODES, FLOATS, TYPES, casts, same

F32 = DType.F32


@pytest.mark.parametrize("dtype", TYPES)
def test_casts(dtype: DType) -> None:
    program, given, want = casts(dtype)
    verify(program)
    for found, right in zip(evaluate(program, given), want, strict=True):
        same(found, right)


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_lossless(dtype: DType) -> None:
    """To a wider type, if there and back is."""
    x = CODES.view(dtype.numpy)
    for to in (*FLOATS, *TYPES):
        t = Tensor("x", x.shape, dtype)
        back = compute(Tensor("y", x.shape, F32), lambda i, t=t, to=to: cast(Cast(Load(t, (i,)), to), F32))  # fmt: skip
        (found,) = evaluate(Program((t,), (), (back,), (back.out,)), {"x": x})
        kept = np.array_equal(found, x.astype(np.float32), equal_nan=True)
        assert not lossless(dtype, to) or kept
        assert lossless(dtype, to) == kept or to.is_float8
    assert not any(lossless(t, dtype) for t in DType if t not in (dtype, DType.BOOL))
    assert lossless(DType.BOOL, dtype) == (dtype is not DType.F8E8M0)


@pytest.mark.parametrize("dtype", TYPES)
def test_no_operation_takes_them(dtype: DType) -> None:
    x, flag = Tensor("x", (4,), dtype), Tensor("flag", (4,), DType.BOOL)

    def of(body: Expr, combiner: str | None = None) -> Program:
        out = Tensor("y", () if combiner else (4,), body.dtype)
        s = compute(out, lambda i: body_at(body, i), reduce=(4,) if combiner else (), combiner=combiner)  # fmt: skip
        return Program((x, flag), (), (s,), (out,))

    def body_at(body: Expr, i: Expr) -> Expr:
        return Select(Load(flag, (i,)), Load(x, (i,)), body) if isinstance(body, Const) else op(i)

    verify(of(const(1.0, dtype)))
    for op in (
        lambda i: Unary("neg", Load(x, (i,))),
        lambda i: Unary("isnan", Load(x, (i,))),
        lambda i: Binary("add", Load(x, (i,)), Load(x, (i,))),
        lambda i: Binary("lt", Load(x, (i,)), Load(x, (i,))),
    ):
        with pytest.raises(VerificationError, match=rf"no '\w+' of {dtype}"):
            verify(of(op(const(0, DType.I64))))
    with pytest.raises(VerificationError, match=f"'max' of {dtype}"):
        verify(of(const(1.0, dtype), "max"))


def test_rounding_to_8_bits_is_kept() -> None:
    """Whatever precision else may be in excess, and where there is no zero."""
    x = Load(Tensor("x", (), F32), ())
    there_and_back = Cast(Cast(x, DType.F8E5M2), F32)
    assert simplify_expr(there_and_back, excess_precision=True) == there_and_back
    zero = Cast(Cast(const(0.0, F32), DType.F8E8M0), F32)
    assert simplify_expr(zero) == const(2.0**-127, F32)
    flag = Load(Tensor("flag", (), DType.BOOL), ())
    either = Cast(Cast(flag, DType.F8E8M0), F32)
    assert simplify_expr(either) == either
    whole = interval(Cast(Cast(const(-3, DType.I64), DType.F8E8M0), DType.I32))
    assert whole is not None
    assert whole.lo <= 4 <= whole.hi


@pytest.mark.parametrize("dtype", TYPES)
def test_text(dtype: DType) -> None:
    program, *_ = casts(dtype)
    short = dict(zip(TYPES, ("f8e4m3", "f8e5m2", "f8e8m0"), strict=True))[dtype]
    assert f"input code: {short}[256]\n" in show(program)
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program
