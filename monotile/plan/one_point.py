"""Along which axes of a step each task lies within one run."""

from collections.abc import Iterable

from monotile.ir.program import At, Compute
from monotile.plan.nodes import Step


def one_point(step: Step, anchor: Compute, at: Iterable[At]) -> bool:
    """Whether each task of `step` has one value of each of these."""

    def single(x: At) -> bool:
        for d in step.dims:
            if [a for p in d.axes if (a := anchor.axes[p]).extent > 1] == [x.axis]:
                return d.stage is not None and x.run % d.tile == 0 and not d.lead
        return x.axis.extent == 1

    return all(map(single, at))
