"""What maps ask for ahead: a later one of a stage at the stage's beginning, one latency instead of one a step; one of many vectors a
thread for several of these, one latency instead of one a vector."""

import math
from collections.abc import Iterable

from monotile.ir.expr import Load, loads
from monotile.ir.program import expressions
from monotile.kernels.elementwise.method import Map
from monotile.kernels.family import Prefetching
from monotile.plan.nodes import Prefetch
from monotile.targets.model import fitted

MOST_WORDS = 32  # registers of a thread for what is on its way


def prefetch(where: Prefetching, at: str) -> tuple[Prefetch, ...]:
    """At "stage", for steps after the first with one vector a thread; else for several vectors at a time."""
    step, target = where.step, where.target
    assert isinstance(step.method, Map)
    if at != "stage" or step.bounds:
        return ()
    own = {name for s in where.stage.steps for name in s.computes}
    elements = math.prod(d.tile + d.lead for d in step.dims)
    width = step.method.vector
    turns = -(-elements // (width * target.threads))
    statements = [where.statements[name] for name in step.computes]
    read = {x for s in statements for part in expressions(s) for x in loads(part)}
    far = _words((x for x in read if x.tensor.name not in own), width)
    if turns == 1:
        early = where.number > 0 and 0 < far <= MOST_WORDS
        return (Prefetch("all", "stage"),) if early else ()
    words = _words((x for x in read if x.tensor.name not in step.computes), width)
    most = fitted(target.model.prefetch).turns  # their code is written out
    rounds = -(-turns // max(1, min(most, MOST_WORDS // max(1, words))))
    together = -(-turns // rounds) if far else 1
    return (Prefetch("all", "loop", together),) if together > 1 else ()


def _words(found: Iterable[Load], width: int) -> int:
    """Registers that vectors of `found` take."""
    return sum(-(-x.dtype.itemsize * width // 4) for x in found)
