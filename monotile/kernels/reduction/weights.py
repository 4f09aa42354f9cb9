"""The weights that a reduction multiplies with: candidates for a prefetch into registers, or for pinning on chip through a loop."""

import math
from collections.abc import Mapping

from monotile.analysis.unconditional import unconditional
from monotile.codegen.address import readable
from monotile.codegen.packs import LANE
from monotile.codegen.site import unflatten
from monotile.codegen.view import View
from monotile.ir.expr import Axis, Load, add, axes_of, idx, loads, mul, substitute
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.cost import distinct_loads
from monotile.kernels.reduction.form import form_of
from monotile.kernels.reduction.method import Reduce
from monotile.plan.nodes import Dim, Step
from monotile.targets.target import Target


def rows_of(x: Load, c: Compute, dims: tuple[Dim, ...]) -> tuple[int, ...]:
    """The positions of the dims that `x` depends on."""
    used = frozenset[Axis]().union(*(axes_of(i) for i in x.index))
    return tuple(k for k, d in enumerate(dims) if any(c.axes[p] in used for p in d.axes))


def multiplied(c: Compute, weights: frozenset[str]) -> tuple[Load, ...]:
    """The loads of `weights` in a reduction that differ for each point of the reduction, are unconditional, and are no gathers."""
    always = set(unconditional(c.body))
    return tuple(
        x
        for x in distinct_loads(c.body)
        if x in always
        and x.tensor.name in weights
        and not any(loads(i) for i in x.index)
        and set(c.reduce) <= frozenset[Axis]().union(*map(axes_of, x.index))
    )


def task_bytes(x: Load, c: Compute, dims: tuple[Dim, ...]) -> int:
    """Bytes of `x` that a task reads."""
    points = math.prod(a.extent for a in c.reduce)
    return math.prod(dims[k].tile for k in rows_of(x, c, dims)) * points * x.dtype.itemsize


def weights_of(
    step: Step, computes: Mapping[str, Compute | Scatter], weights: frozenset[str]
) -> tuple[Load, ...]:
    """The weights that a reduction by lanes multiplies with, among `weights` that its step reads nowhere else."""
    method, (anchor, *after) = step.method, (computes[name] for name in step.computes)
    if not isinstance(method, Reduce) or method.side_by_side or method.vector == 1:
        return ()
    if not isinstance(anchor, Compute):
        return ()
    statements = [s for s in (anchor, *after) if isinstance(s, Compute)]
    every = [x.tensor.name for s in statements for x in distinct_loads(s.body)]
    return tuple(x for x in multiplied(anchor, weights) if every.count(x.tensor.name) == 1)


def weight_bytes(
    step: Step, computes: Mapping[str, Compute | Scatter], weights: frozenset[str]
) -> int:
    """Bytes of the weights that a task of a reduction multiplies with."""
    anchor = computes[step.computes[0]]
    found = weights_of(step, computes, weights)
    return sum(task_bytes(x, anchor, step.dims) for x in found if isinstance(anchor, Compute))


def held_early(step: Step, view: View, weights: frozenset[str], target: Target) -> bool:
    """Whether threads can hold the step's weights in registers from the stage's beginning on: each thread has fixed vectors, which are
    single accesses."""
    wanted, anchor = weights_of(step, view.statements, weights), view.statements[step.computes[0]]
    if not wanted or not isinstance(step.method, Reduce):
        return False
    form = form_of(anchor, step.dims, step.method, target.threads)
    start, lane = Axis("start", form.vectors), Axis(LANE, form.width)
    at = unflatten(add(mul(start, idx(form.width)), lane), form.axes)
    point = dict(view.site(step).point) | at
    return form.steady and all(
        view.packs(
            x.tensor,
            [substitute(i, point) for i in x.index],
            readable(view.places[x.tensor.name], own=False),
            lane,
        )
        for x in wanted
    )
