"""What maps ask for ahead: later ones of a stage at its beginning, one latency instead of one a step; those of many turns for several of
these, one latency instead of one a turn."""

import math
from collections.abc import Iterable, Mapping

import msgspec

from monotile.ir.expr import Load, loads
from monotile.ir.program import Compute, Scatter
from monotile.schedule.plan import Map, PlanNode, Stage, Step, each_stage
from monotile.target.target import Target

MOST_EARLY = 32  # registers of a thread for what is on its way
MOST_TOGETHER = 4  # turns, whose code is written out: more were slower (H100: 22.6 with 7, 17.3 with 1 in wav2vec 2.0)


def early_maps(
    body: tuple[PlanNode, ...], computes: Mapping[str, Compute | Scatter], target: Target
) -> tuple[PlanNode, ...]:
    """`body` with what its maps ask for ahead. Early are those that come after another step and take one turn of the threads."""

    def changed(stage: Stage) -> Stage:
        own = {name for step in stage.steps for name in step.computes}
        return msgspec.structs.replace(
            stage,
            steps=tuple(
                _ahead(step, k, computes, own, target) for k, step in enumerate(stage.steps)
            ),
        )

    return each_stage(body, changed)


def narrowed(width: int, elements: int, threads: int) -> int:
    """Neighbours that a thread takes at once: as few turns, with narrower vectors where threads would stand idle."""
    while width > 1 and elements * 2 // width <= threads:
        width //= 2
    return width


def _ahead(
    step: Step,
    number: int,
    computes: Mapping[str, Compute | Scatter],
    own: set[str],
    target: Target,
) -> Step:
    """own: tensors that the stage computes."""
    if not isinstance(step.method, Map):
        return step
    elements = math.prod(d.tile + d.lead for d in step.dims)
    width = narrowed(step.method.vector, elements, target.threads)
    turns = -(-elements // (width * target.threads))
    statements = [computes[name] for name in step.computes]
    read = {x for s in statements if isinstance(s, Compute) for x in loads(s.body)}
    far = _words((x for x in read if x.tensor.name not in own), width)
    early = turns == 1 and number > 0 and 0 < far <= MOST_EARLY
    words = _words((x for x in read if x.tensor.name not in step.computes), width)
    rounds = -(-turns // max(1, min(MOST_TOGETHER, MOST_EARLY // max(1, words))))
    together = -(-turns // rounds) if far else 1
    return msgspec.structs.replace(step, method=Map(step.method.vector, early, together))


def _words(found: Iterable[Load], width: int) -> int:
    """Registers that vectors of `found` take."""
    return sum(-(-x.dtype.itemsize * width // 4) for x in found)
