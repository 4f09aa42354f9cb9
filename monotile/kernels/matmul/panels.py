"""Copies of weights in the order in which a product reads its right operand: the position of each column and value of k."""

from monotile.analysis.affine import Affine
from monotile.analysis.contraction import factors
from monotile.analysis.words import STEP_BYTES, TILE_COLUMNS, WORD_BYTES
from monotile.codegen.view import View
from monotile.ir.expr import Axis, Load, axes_of
from monotile.ir.program import Compute
from monotile.kernels.matmul.method import Matmul
from monotile.plan.nodes import Step
from monotile.plan.places import Panels


def panels(step: Step, view: View) -> Panels | None:
    """The copy from which the step reads its right operand, without its parts; None for a step that reads none, or whose tasks cannot
    read one: a task's columns have to be whole panels, and each axis a stride of the weight."""
    anchor, m = view.statements[step.computes[step.anchor]], step.method
    if not isinstance(m, Matmul) or m.right.copy != "panels" or not isinstance(anchor, Compute):
        return None
    _, right = factors(anchor, swapped=m.swapped)
    if not isinstance(right, Load):
        return None
    dim = step.dims[m.n]
    across, depth = ([anchor.axes[p] for p in dim.axes], [anchor.reduce[p] for p in m.k])
    where = view.offset(right.tensor, right.index, view.place(right.tensor))
    batches = matrices(step, anchor, where)
    table = view.tables.get(right.tensor.name, 0)
    fixed = {a.name for a in (*across, *depth)}
    if (
        (dim.tile % m.block_n and dim.tile < dim.extent)
        or fixed & {b.axis for b in step.bounds}
        or fixed & {a.name for i in right.index[:table] for a in axes_of(i)}
        or not {atom for atom, _ in where.terms} <= {*batches, *across, *depth}
    ):
        return None
    words = m.instruction == "words"
    return Panels(
        weight=right.tensor.name,
        anchors=(anchor.out.name,),
        first=where.constant,
        batches=_strides(where, batches),
        columns=_strides(where, across),
        depth=_strides(where, depth),
        block=m.block_n,
        group=TILE_COLUMNS if words else m.block_n,
        run=STEP_BYTES // WORD_BYTES if words else 1,
        word=WORD_BYTES // right.dtype.itemsize if words else 1,
    )


def matrices(step: Step, anchor: Compute, where: Affine) -> list[Axis]:
    """The batch axes of the weight's matrices. where: the offset of its elements."""
    m = step.method
    assert isinstance(m, Matmul)
    sides = {*step.dims[m.m].axes, *step.dims[m.n].axes}
    batch = (anchor.axes[p] for d in step.dims for p in d.axes if p not in sides)
    return [a for a in batch if where.coefficient(a)]


def _strides(where: Affine, axes: list[Axis]) -> tuple[tuple[int, int], ...]:
    return tuple((a.extent, where.coefficient(a)) for a in axes)
