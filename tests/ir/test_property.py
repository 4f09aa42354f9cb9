"""Random Programs: what the generator makes is well formed, prints and evaluates."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.ir.evaluate import evaluate
from monotile.ir.printer import show
from monotile.ir.program import Program
from monotile.ir.verify import verify
from tests.ir.strategies import programs, same, values


@given(programs(), st.integers(0, 1 << 16))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs_verify_print_and_evaluate(program: Program, seed: int) -> None:
    verify(program)
    assert show(program) == show(program)
    first = evaluate(program, values(program, seed))
    again = evaluate(program, values(program, seed))
    for t, a, b in zip(program.outputs, first, again, strict=True):
        assert (a.shape, a.dtype) == (t.shape, t.dtype.numpy)
        assert same(a, b)
