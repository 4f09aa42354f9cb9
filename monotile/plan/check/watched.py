"""Checks the memory that the host accesses while a Plan runs: separate stages read it, and results are written where the host polls."""

from collections.abc import Mapping

from monotile.analysis.dependence import loads_of
from monotile.ir.program import Compute, Program, Scatter, is_snapshot
from monotile.plan.access import watched_tensors
from monotile.plan.invalid import fail
from monotile.plan.nodes import Plan
from monotile.plan.walk import stages_in


def check_watched(plan: Plan, program: Program, computes: Mapping[str, Compute | Scatter]) -> None:
    """Raises VerificationError naming the stage or the tensor at fault."""
    changing = program.changing
    for stage in stages_in(plan.body):
        made = [computes[name] for step in stage.steps for name in step.computes]
        if not any(is_snapshot(s, changing) for s in made):
            continue
        if len(made) > 1:
            fail(f"{stage.name} computes more than a snapshot of what the host may change")
        if stage.everywhere:
            fail(
                f"{stage.name} gives every worker a snapshot of its own of what the host may change"
            )
    seen = watched_tensors(program, plan.places) - changing
    for name in seen & computes.keys():
        if len(plan.places[name]) > 1 or not isinstance(computes[name], Scatter):
            fail(f"the host does not see {name} as it is made")
    for s in computes.values():
        if found := sorted(seen.intersection(x.tensor.name for x in loads_of(s))):
            fail(f"{s.out.name} loads {found[0]}, which lies where the host looks")
