"""Reasons why a stage cannot wait for its hand-off within its first step."""

from collections.abc import Iterable, Mapping

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import loads
from monotile.ir.program import Compute
from monotile.kernels.family import Statements
from monotile.plan.nodes import Step


def several_blocks(step: Step, blocks: Mapping[int, int]) -> bool:
    """Whether a task of the step consists of more than one block. blocks: the extent of a block along some of the dims; 1 along others."""
    walked = (d.extent if d.stage is None else d.tile + d.lead for d in step.dims)
    return any(size > blocks.get(k, 1) for k, size in enumerate(walked))


def looks_up(step: Step, statements: Statements, names: Iterable[str] | None = None) -> str | None:
    """Why addresses cannot be computed before the hand-off: some are gathers, or the step is no Compute; None if they can. names: the
    statements that are checked; None: those up to the anchor."""
    made = [statements[n] for n in names or step.computes[: step.anchor + 1]]
    found = (x for s in made for x in loads_of(s))
    if not all(isinstance(s, Compute) for s in made) or any(
        loads(i) for x in found for i in x.index
    ):
        return "its addresses are in memory"
    return None
