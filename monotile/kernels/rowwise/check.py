"""Checks that a step with rows in registers is valid."""

import math

from monotile.ir.program import Compute
from monotile.kernels.common.late import looks_up
from monotile.kernels.common.moments import moments
from monotile.kernels.common.register_rows import even
from monotile.kernels.common.rowwise import rowwise
from monotile.kernels.family import Checked, Statements
from monotile.kernels.rowwise.cuts import scratch_bytes
from monotile.kernels.rowwise.method import HoldRows
from monotile.plan.invalid import fail
from monotile.plan.nodes import Stage


def check(c: Checked) -> None:
    """Fails unless its computes work row by row, each task has whole rows, and the scratch is large enough for the sums."""
    stage, step, computes, target = c.stage, c.step, c.statements, c.target
    method, anchor = step.method, step.computes[step.anchor]
    assert isinstance(method, HoldRows)
    if sorted(method.order) != sorted(step.computes):
        fail(f"{stage.name}: its order of evaluation is of other computes than its own")
    # In the order that was matched: of several the match depends on where it begins.
    found = rowwise([s for n in method.order if isinstance(s := computes[n], Compute)])
    wide = [found is not None and found.wide(found.by_name(n)) for n in step.computes]
    if found is None or wide != [k >= step.anchor for k in range(len(wide))]:
        fail(f"{stage.name}: the computes of {anchor} do not work row by row")
        return
    if method.match != found.names:
        fail(f"{stage.name}: the rows of {anchor} are not those that its method says")
    if any(d.stage is not None and max(d.axes) >= found.rows for d in step.dims):
        fail(f"{stage.name}: a row of {anchor} has several tasks")
    if method.lanes > target.threads or method.lanes & (method.lanes - 1):
        fail(f"{stage.name}: {method.lanes} lanes")
    if found.span[-1] % method.vector or step.scratch_bytes < scratch_bytes(found, target):
        fail(f"{stage.name}: the vectors or the scratch of {anchor} do not fit")
    possible = (
        set(moments(found).items())
        if even(math.prod(found.span), method, target)
        else set[tuple[str, str]]()
    )
    if not possible.issuperset(method.moments):
        fail(
            f"{stage.name}: {', '.join(squares for squares, _ in method.moments)} cannot be found in one pass with a sum"
        )


def why_not_late(stage: Stage, statements: Statements) -> str | None:
    """Its loads have to be addressed by the row alone, without gathers, in a single step."""
    first, *rest = stage.steps
    if rest:
        return "it has several steps"
    computes = [n for n in first.computes if isinstance(statements[n], Compute)]
    return looks_up(first, statements, computes)
