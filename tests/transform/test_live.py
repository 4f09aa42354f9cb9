"""Bounds of the call: what they are found on, that they change nothing, and that what they leave out is not read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Load, Select, Tensor, const, idx
from monotile.ir.printer import show
from monotile.ir.program import Compute, Live, Program, compute, scalar, statements
from monotile.ir.verify import verify
from monotile.transform.live.bound import bound_live
from tests.transform.live_programs import FORMS, attention, values

BOUNDED = {"products", "scores", "top", "powers", "total", "shares", "result"}
FAR = 2**63 - 1


def bounded(program: Program) -> set[str]:
    return {s.out.name for s in statements(program.body) if isinstance(s, Compute) and s.live}


@pytest.mark.parametrize("form", FORMS)
def test_attention_is_bounded_from_its_products_on(form: str) -> None:
    program = bound_live(attention(form, rows=3))
    verify(program)
    assert bounded(program) == BOUNDED | ({"mask"} if form in ("added", "lowest") else set())
    ends = {x.ends for s in program.body if isinstance(s, Compute) for x in s.live}
    ((first, last),) = ends
    assert last is not None
    assert (first is not None) == (form in ("window", "padded", "lowest"))


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    rows=st.integers(1, 4),
    position=st.one_of(st.integers(-3, 50), st.sampled_from([-(2**63), FAR - 4])),
    start=st.integers(-3, 50),
)
def test_bounds_change_nothing(form: str, rows: int, position: int, start: int) -> None:
    """What is undefined is NaN in the evaluator, so its readers would show it. Rows may see no key at all."""
    program = attention(form, rows=rows)
    given = values(program, position, start)
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(program, given)
        (found,) = evaluate(bound_live(program), given)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def runs(program: Program) -> Program:
    """With ends of runs of 16 rows, wherever they would do."""
    return bound_live(program, apart=lambda _c, _at, wide: wide, run=16)


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    rows=st.integers(17, 40),
    position=st.one_of(st.integers(-30, 50), st.sampled_from([-(2**63), FAR - 40])),
    start=st.integers(-3, 50),
)
def test_bounds_of_runs_change_nothing(form: str, rows: int, position: int, start: int) -> None:
    program = attention(form, rows=rows)
    bounded = runs(program)
    verify(bounded)
    assert any(x.at for s in statements(bounded.body) if isinstance(s, Compute) for x in s.live)
    given = values(program, position, start)
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(program, given)
        (found,) = evaluate(bounded, given)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_row_without_keys_does_not_widen_its_run() -> None:
    """Of 40 rows in runs of 16, row r sees keys r - 9 to r; those from 40 on see none. What no row of a run sees is not read."""
    text = show(runs(attention("window", rows=40)))
    assert "run_end[i0:3] i64 = max(r0:16) where(" in text
    assert "run_first[i0:3] i64 = min(r0:16) min(where(" in text
    assert "live r0 in [run_first[i1 // 16]:run_end[i1 // 16]]" in text
    program = attention("window", rows=32)
    clean = values(program, 20)  # rows 0 to 15 see keys 11 to 35; from row 29 on nothing is seen
    dirty = {n: x.copy() for n, x in clean.items()}
    for name in ("k", "v"):
        dirty[name][:, :11] = np.nan
    (wanted,), (found,) = evaluate(program, clean), evaluate(runs(program), dirty)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_dead_values_are_not_read(form: str) -> None:
    """Keys and values behind the last position may hold anything."""
    program = attention(form, rows=2)
    clean = values(program, 11)
    dirty = {n: x.copy() for n, x in clean.items()}
    for name in ("k", "v"):
        dirty[name][:, 13:] = np.nan
    for x, y in zip(evaluate(program, clean), evaluate(bound_live(program), dirty), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6)


def test_a_bound_is_the_widest_of_all_rows() -> None:
    text = show(bound_live(attention("padded", batch=3, rows=2)))
    assert "live_first i64 = min(r0:3, r1:2) max(min(start[r0], 39), 0)" in text
    assert "live_end i64 = max(r0:3, r1:2) max(max(min(position[r1], 39), 0) + 1, max(" in text


def lengths(*, also: bool = False) -> Program:
    """A sum over as many elements of a row as the longest of all sequences has, by a mask; `also`: the masked tensor is a result."""
    x, n = Tensor("x", (3, 32), DType.F32), Tensor("n", (3,), DType.I64)
    masked = compute(
        Tensor("masked", (3, 32), DType.F32),
        lambda b, i: Select(Binary("lt", i, Load(n, (b,))), Load(x, (b, i)), const(0.0, DType.F32)),
    )
    total = compute(
        Tensor("total", (3,), DType.F32),
        lambda b, i: Load(masked.out, (b, i)),
        reduce=(32,),
        combiner="sum",
    )
    more = (masked.out,) if also else ()
    return Program((x, n), (), (masked, total), (total.out, *more))


def test_any_masked_sum() -> None:
    assert bounded(bound_live(lengths())) == {"masked", "total"}
    assert bounded(bound_live(lengths(also=True))) == {"total"}  # a result is defined everywhere


def test_static_bounds_are_left_to_the_mask() -> None:
    x = Tensor("x", (32,), DType.F32)
    total = compute(
        Tensor("total", (), DType.F32),
        lambda i: Select(Binary("lt", i, idx(5)), Load(x, (i,)), const(0.0, DType.F32)),
        reduce=(32,),
        combiner="sum",
    )
    program = Program((x,), (), (total,), (total.out,))
    assert bound_live(program) is program


X, END = Tensor("x", (32,), DType.F32), scalar("end", DType.I64)
PART = compute(Tensor("part", (32,), DType.F32), lambda i: Load(X, (i,)))
PART = Compute(PART.out, PART.axes, (), None, PART.body, live=(Live(PART.axes[0], None, END),))
R = Axis("r0", 32)
TOTAL = Compute(scalar("total", DType.F32), (), (R,), "sum", Load(PART.out, (R,)))
GOOD = Compute(TOTAL.out, (), (R,), "sum", TOTAL.body, live=(Live(R, None, END),))


def program_of(*body: Compute) -> Program:
    return Program((X, END), (), body, (body[-1].out,))


def test_the_verifier_follows_what_is_undefined() -> None:
    verify(program_of(PART, GOOD))
    reach = Compute(TOTAL.out, (), (R,), "sum", Load(PART.out, (Binary("sub", idx(31), R),)), live=GOOD.live)  # fmt: skip
    late = compute(Tensor("late", (), DType.I64), lambda: idx(3))
    later = Compute(TOTAL.out, (), (R,), "sum", TOTAL.body, live=(Live(R, None, late.out),))
    early = Compute(TOTAL.out, (), (R,), "sum", Load(X, (R,)), live=later.live)
    most = Compute(scalar("at", DType.I64), (), (R,), "argmax", Load(X, (R,)), live=GOOD.live)
    for broken, words in (
        (program_of(PART, TOTAL), "undefined part of 'part' may be read"),
        (program_of(PART, reach), "undefined part"),
        (program_of(PART, late, later), "undefined part"),
        (program_of(PART), "a part of it is undefined"),
        (program_of(early), "'late' is used where it is not defined"),
        (program_of(most), "argmax"),
    ):
        with pytest.raises(VerificationError, match=words):
            verify(broken)


def test_the_evaluator_refuses_bounds_beyond_the_extent() -> None:
    x = np.ones(32, np.float32)
    assert evaluate(program_of(PART, GOOD), {"x": x, "end": np.asarray(5)}) == (5.0,)
    for end in (0, 33):
        with pytest.raises(VerificationError, match="live from 0"):
            evaluate(program_of(PART, GOOD), {"x": x, "end": np.asarray(end)})


def test_what_is_read_whole_anyway_is_not_bounded() -> None:
    """A product of all of `masked` needs its zeros."""
    program = lengths()
    masked = program.body[0]
    assert isinstance(masked, Compute)
    all_of_it = compute(
        Tensor("all_of_it", (3,), DType.F32),
        lambda b, i: Load(masked.out, (b, i)),
        reduce=(32,),
        combiner="prod",
    )
    more = Program(
        program.inputs, (), (*program.body, all_of_it), (*program.outputs, all_of_it.out)
    )
    assert bound_live(more) is more
