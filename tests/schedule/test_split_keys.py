"""Softmax-weighted sums in parts of the keys: equal to the whole, at any position, on the evaluator and as kernels."""

import numpy as np
import pytest

from monotile.analysis.uses import mentions
from monotile.choice.chooser import Prefer
from monotile.config import Options
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Compute, Program, compute
from monotile.ir.verify import verify as verify_program
from monotile.kernels.draft import Context
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.walk import stages_in
from monotile.schedule.split_keys import split_keys
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from monotile.transform.live.bound import bound_live
from tests.codegen.emulate import COMPILER, emulate
from tests.transform.live_programs import FORMS, attention, values

CUDA = cuda_target("sm_90a")
OPTIONS = Options(workers=5)
POSITIONS = (-5, 0, 1, 5, 63, 127, 500)


def preferring(parts: int) -> Prefer:
    return Prefer("split keys", lambda value: value == {"parts": parts, "streamed": False})


def split(program: Program, parts: int) -> Program:
    return split_keys(program, CUDA, Context.of(program, CUDA, preferring(parts)))


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("form", FORMS)
def test_parts_give_the_whole(form: str, parts: int) -> None:
    for rows in (1, 3):
        program = attention(form, rows=rows, keys=128)
        found = split(program, parts)
        assert found != program
        bounded = bound_live(found)
        for p in (found, bounded):
            verify_program(p)
        assert all(
            s.live for s in bounded.body if isinstance(s, Compute) and "_parts" in s.out.name
        )
        for position in POSITIONS:
            given = values(program, position, start=2)
            with np.errstate(all="ignore"):
                wanted, *others = (evaluate(p, given)[0] for p in (program, found, bounded))
            for x in others:
                np.testing.assert_allclose(x, wanted, rtol=1e-4, atol=1e-5)


def test_what_others_read_stays_whole() -> None:
    program = attention("plain", keys=128)
    by_name = {s.out.name: s for s in program.body if isinstance(s, Compute)}
    shown = compute(by_name["shares"].out, lambda *_: by_name["shares"].body)
    more = Program(program.inputs, (), program.body, (*program.outputs, shown.out))
    assert mentions(more)["shares"] == 2
    assert split(more, 4) is more


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("form", ["plain", "window", "raw", "lowest"])
def test_on_the_emulator(form: str) -> None:
    program = attention(form, rows=2, keys=128)
    found = bound_live(split(program, 4))
    plan = schedule(found, CUDA, OPTIONS)
    verify(plan, found, CUDA)
    assert sum(any(x.bounds for x in s.steps) for s in stages_in(plan.body)) <= 2
    source = emit(found, plan, CUDA, OPTIONS)
    for position in POSITIONS[1:]:
        given = values(program, position)
        with np.errstate(all="ignore"):
            (wanted,) = evaluate(program, given)
        (x,) = emulate(found, plan, source, given, late=False, seed=max(position, 0))
        np.testing.assert_allclose(x, wanted, rtol=1e-4, atol=1e-5)
