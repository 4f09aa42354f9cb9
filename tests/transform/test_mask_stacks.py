"""Results of each iteration of a loop that may end early: zeros where it did not run, whoever reads them."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.ir.evaluate import evaluate
from monotile.ir.program import Loop, Program, statements
from monotile.ir.verify import verify
from monotile.transform.legalise.mask_stacks import mask_stacks
from tests.ir.strategies import programs, same, values


@given(program=programs(), seed=st.integers(0, 1 << 16))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_meaning_stays(program: Program, seed: int) -> None:
    masked = mask_stacks(program)
    verify(masked)
    early = [s for s in statements(program.body) if isinstance(s, Loop) and s.ends_early]
    assert (masked is program) == (not any(s.stacked for s in early))
    given_values = values(program, seed)
    pairs = zip(evaluate(masked, given_values), evaluate(program, given_values), strict=True)
    assert all(same(a, b) for a, b in pairs)
