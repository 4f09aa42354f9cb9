"""Checks a Plan's bounds for dead elements and terms against the Program's."""

from monotile.codegen.view import View
from monotile.ir.program import Compute, Live
from monotile.kernels.registry import family_of, suits
from monotile.plan.invalid import fail
from monotile.plan.nodes import Step
from monotile.plan.one_point import one_point
from monotile.plan.places import held_by_all
from monotile.targets.target import Target


def _key(x: Live) -> tuple[str, str, str, tuple[tuple[str, int], ...]]:
    first, last = (t.name if t is not None else "" for t in x.ends)
    return x.axis.name, first, last, tuple((a.axis.name, a.run) for a in x.at)


def check_bounds(step: Step, view: View, target: Target) -> None:
    """Raises VerificationError if a live element is skipped, or an undefined term is reduced."""
    anchor = view.statements[step.computes[step.anchor]]
    live = anchor.live if isinstance(anchor, Compute) else ()
    said = {_key(x): x for x in live}
    own_bounds = {(b.axis, b.first, b.last, b.at) for b in step.bounds}
    for b in step.bounds:
        ends = [view.places[n] for n in (b.first, b.last) if n]
        if b.known and not all(map(held_by_all, ends)):
            fail(f"{view.stage.name}: a bound of {anchor.out.name} is behind a hand-off")
        x = said.get((b.axis, b.first, b.last, b.at))
        if x is None or not isinstance(anchor, Compute):
            fail(
                f"{view.stage.name}: {anchor.out.name} is not live along {b.axis} as its step says"
            )
        elif not one_point(step, anchor, x.at):
            fail(f"{view.stage.name}: a task of {anchor.out.name} has several bounds")
    if step.bounds and not (
        isinstance(anchor, Compute) and family_of(step.method).bounded(anchor, step.method, target)
    ):
        fail(f"{view.stage.name}: {anchor.out.name} cannot be bounded so")
    own = {n for x in view.stage.steps for n in x.computes}
    for name in (n for b in step.bounds for n in (b.first, b.last) if n in own):
        fail(f"{view.stage.name} is bounded by {name}, which it makes itself")
    for b, x in said.items():
        if isinstance(anchor, Compute) and x.axis in anchor.reduce and b not in own_bounds:
            fail(
                f"{view.stage.name}: {anchor.out.name} counts terms along {x.axis.name} that are dead"
            )
    if not suits(step, (view.statements[n] for n in step.computes), target):
        fail(f"{view.stage.name}: a step that {anchor.out.name} is of counts terms that are dead")
    if step.bounds and step.method.ahead("stage"):
        fail(
            f"{view.stage.name} asks for what {anchor.out.name} reads before it knows how much that is"
        )
