"""Whether each task of a step has a single value of given axes."""

import math
from collections.abc import Iterable

from monotile.ir.program import At, Compute
from monotile.plan.nodes import Step


def one_point(step: Step, anchor: Compute, at: Iterable[At]) -> bool:
    """Whether each task of `step` has one value of each of these."""

    def single(x: At) -> bool:
        for d in step.dims:
            axes = [a for p in d.axes if (a := anchor.axes[p]).extent > 1]
            if x.axis not in axes:
                continue
            place = axes.index(x.axis)
            inner = math.prod(a.extent for a in axes[place + 1 :])
            whole = place == 0 or x.axis.extent * inner % d.tile == 0
            return d.stage is not None and x.run * inner % d.tile == 0 and whole and not d.lead
        return x.axis.extent == 1

    return all(map(single, at))
