"""Random Programs: their Plans are valid, read back from JSON, and compute what the Programs mean."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.ir.evaluate import evaluate
from monotile.ir.printer import show
from monotile.ir.program import Program
from monotile.kernels.registry import read_plan
from monotile.plan.check.structure import verify
from tests.codegen.cpu_run import Compiled
from tests.ir.strategies import programs, values
from tests.schedule import programs as p


@given(program=programs())
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_plans_are_valid(program: Program) -> None:
    program = p.ready(program)
    for target in p.TARGETS:
        plan = p.plan_of(program, target)
        verify(plan, program, target)
        assert read_plan(plan.to_json()) == plan


@given(program=programs(), seed=st.integers(0, 1 << 16))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_function_means_the_program(program: Program, seed: int) -> None:
    program = p.ready(program)
    given_values = values(program, seed)
    with np.errstate(all="ignore"):
        wanted = evaluate(program, given_values)
    for got, want in zip(Compiled(program)(given_values), wanted, strict=True):
        if want.dtype.kind in "fV":
            got, want = got.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-6, err_msg=show(program))
        else:
            np.testing.assert_array_equal(got, want, err_msg=show(program))
