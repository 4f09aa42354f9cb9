"""Weights pinned on chip through a loop: each as a separate on-chip tensor, and the functions that fill these."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from monotile.codegen.packs import lane_of
from monotile.codegen.site import Range, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, idx, map_loads, mul, substitute
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.cost import distinct_loads
from monotile.kernels.common.cuda_threads import placed, region, spread
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.reduction.weights import rows_of
from monotile.plan.nodes import Plan, Resident, Stage
from monotile.plan.places import BoxDim, Shared
from monotile.plan.walk import repeats, stages_in


@dataclass(frozen=True, slots=True)
class Pinned:
    """`load` of the body of a Reduce step, kept through the Repeat over `loop` as the on-chip tensor `image`: first the dims `rows`, then
    the reduce axes in order."""

    resident: Resident
    loop: str
    stage: Stage
    load: Load
    image: Tensor
    rows: tuple[int, ...]
    axes: tuple[Axis, ...]

    @property
    def place(self) -> Shared:
        box = tuple(BoxDim(None, n, n) for n in self.image.shape)
        return Shared(self.resident.offset, box, self.image.shape[-1])

    @property
    def within(self) -> Load:
        """The load from the image, over the variables d0, d1, ... of the step's dims and its reduce axes."""
        point: Expr = idx(0)
        for a in self.axes:
            point = add(mul(point, idx(a.extent)), a)
        rows = tuple(Axis(f"d{k}", n) for k, n in zip(self.rows, self.image.shape, strict=False))
        return Load(self.image, (*rows, point))


def pinned_weights(plan: Plan, computes: Mapping[str, Compute | Scatter]) -> tuple[Pinned, ...]:
    """All pinned weights of the Plan."""
    stages = {s.name: s for s in stages_in(plan.body)}
    residents = [(r, loop.axis) for loop in repeats(plan.body) for r in loop.resident]
    return tuple(
        pinned_weight(number, r, loop, stages[r.stage], computes[r.compute])
        for number, (r, loop) in enumerate(residents)
    )


def pinned_weight(
    number: int, resident: Resident, loop: str, stage: Stage, anchor: Compute | Scatter
) -> Pinned:
    """The weight that `resident`, number `number` of the Plan, keeps through `loop` for the step of `stage` that computes `anchor`."""
    step = next(s for s in stage.steps if s.computes[0] == resident.compute)
    assert isinstance(anchor, Compute)
    assert isinstance(step.method, Reduce)
    load = distinct_loads(anchor.body)[resident.load]
    rows = rows_of(load, anchor, step.dims)
    order = step.method.order or tuple(range(len(anchor.reduce)))
    axes = tuple(anchor.reduce[p] for p in order)
    shape = (*(step.dims[k].tile for k in rows), math.prod(a.extent for a in axes))
    image = Tensor(f"{load.tensor.name}_kept{number}", shape, load.dtype)
    return Pinned(resident, loop, stage, load, image, rows, axes)


def read_pinned(body: Expr, kept: Sequence[Pinned]) -> Expr:
    """`body` with kept weights read on chip."""
    images = {k.load: k.within for k in kept}
    return map_loads(body, lambda x: images.get(x, x))


def write_fill(
    e: VectorEmitter, kept: Pinned, ranges: tuple[Range, ...], point: Mapping[str, Expr]
) -> None:
    """Writes the body of the function that copies a task's part on chip; the task's coordinates are variables."""
    threads = e.plan.launch.threads
    rows = tuple(ranges[k] for k in kept.rows)
    width = kept.resident.vector
    vectors = kept.image.shape[-1] // width
    count = region(rows) * vectors
    with ExitStack() as stack:
        head = f"for (idx e = threadIdx.x; e < {count}; e += {threads})"
        stack.enter_context(e.writer.open(head, ["e"], fence=True)).pragma = "#pragma unroll 8"
        parts = unflatten(Axis("e", count), [Axis("row", region(rows)), Axis("vector", vectors)])
        where = spread(parts["row"], rows)
        for r in rows:
            v = r.variable.name
            if r.count != str(r.variable.extent):
                text = bare(e.index(where[v]))
                e.writer.write(f"const idx {v} = mt_min_idx({text}, {r.count} - 1);")
                e.writer.define(v)
                where[v] = r.variable
        lanes = add(mul(parts["vector"], idx(width)), lane_of(width))
        at = placed(point, where) | where | unflatten(lanes, kept.axes)
        stack.enter_context(e.vector(width))
        text = e.body(kept.load, at)
        index = [substitute(i, dict(at)) for i in kept.within.index]
        e.write(kept.image, index, kept.place, text)
