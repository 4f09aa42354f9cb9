"""Copies of weights that the steps of a Plan read (`plan.places.Panels`): a list of them, with the launch's pointers."""

import msgspec

from monotile.codegen.view import Views
from monotile.ir.program import Program
from monotile.kernels.registry import family_of
from monotile.plan.nodes import Body
from monotile.plan.places import Panels
from monotile.plan.walk import stages_in


def copies(body: Body, program: Program, views: Views, slot: int) -> tuple[Panels, ...]:
    """One for each order in which a weight is read, in the order of first use; without parts where it may not be copied. slot: the first free pointer."""
    parts = {w.tensor.name: w.parts for w in program.weights if w.copied}
    found: dict[Panels, Panels] = {}
    for stage in stages_in(body):
        view = views.of(stage)
        for step in stage.steps:
            p = family_of(step.method).panels(step, view)
            if p is None:
                continue
            known = found.get(p.order)
            if known is None:
                known = msgspec.structs.replace(
                    p, anchors=(), slot=slot, parts=parts.get(p.weight, ())
                )
                slot += len(known.parts)
            found[p.order] = msgspec.structs.replace(known, anchors=known.anchors + p.anchors)
    return tuple(found.values())
