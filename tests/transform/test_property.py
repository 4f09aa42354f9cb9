"""Every transform keeps what a random Program means, leaves it well formed, and settles."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.config import Options
from monotile.ir.evaluate import evaluate
from monotile.ir.printer import show
from monotile.ir.program import Program
from monotile.ir.verify import verify
from monotile.transform.fusion.inline import inline_pointwise, inline_views
from monotile.transform.layout.align_axes import align_axes
from monotile.transform.layout.reindex import reindex_reductions
from monotile.transform.legalise.copy_insertion import insert_copies
from monotile.transform.simplify.copy_propagation import propagate_copies
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.simplify import simplify
from tests.ir.strategies import programs, same, values

EXACT = Options(excess_precision=False)
PASSES: dict[str, Callable[[Program], Program]] = {
    "simplify": lambda p: simplify(p, EXACT),
    "eliminate_dead_code": eliminate_dead_code,
    "propagate_copies": propagate_copies,
    "align_axes": align_axes,
    "reindex_reductions": reindex_reductions,
    "insert_copies": insert_copies,
    "inline_views": lambda p: eliminate_dead_code(inline_views(p)),
    "inline_pointwise": lambda p: eliminate_dead_code(inline_pointwise(p)),
    "together": lambda p: together(p),
}
SETTLED = (
    "simplify",
    "eliminate_dead_code",
    "propagate_copies",
    "insert_copies",
    "inline_views",
)  # once is enough


def together(program: Program) -> Program:
    """The passes in the order in which they depend on each other."""
    program = simplify(eliminate_dead_code(inline_views(program)), EXACT)
    program = simplify(inline_pointwise(program), EXACT)
    return insert_copies(
        eliminate_dead_code(propagate_copies(reindex_reductions(align_axes(program))))
    )


@pytest.mark.parametrize("name", PASSES)
@given(program=programs(), seed=st.integers(0, 1 << 16))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_meaning_stays(name: str, program: Program, seed: int) -> None:
    f = PASSES[name]
    new = f(program)
    verify(new)
    before, after = evaluate(program, values(program, seed)), evaluate(new, values(program, seed))
    assert all(same(a, b) for a, b in zip(before, after, strict=True)), show(program) + show(new)
    if name in SETTLED:
        again = f(new)
        assert again is new, show(new) + show(again)
