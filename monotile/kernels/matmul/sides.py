"""The operands of a product in the form in which its step reads them."""

from monotile.analysis.affine import flattened, offset
from monotile.analysis.contraction import factors
from monotile.analysis.masked import masked
from monotile.analysis.two_of_four import two_of_four
from monotile.codegen.address import WIDEST, alignment, readable
from monotile.codegen.view import View
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Load
from monotile.ir.program import Compute
from monotile.kernels.common.operand import Operand, exact_operand
from monotile.kernels.common.product import elements_of
from monotile.kernels.matmul.gate import sums_of
from monotile.kernels.matmul.method import Matmul
from monotile.plan.nodes import Dim, Step


def exact_sides(step: Step, view: View) -> tuple[Operand, Operand]:
    """The best way for warps to load the left and the right operand, given the method's wishes. For columns in runs the left one is
    copied in vectors as wide as its place allows; for several products side by side, all right ones alike."""
    m, anchors = step.method, sums_of(step, view.statements)
    assert isinstance(m, Matmul)
    sides = [_exact(step, view, anchor) for anchor in anchors]
    return sides[0][0], min(
        (right for _, right in sides), key=lambda o: (o.copy == "async", o.vector)
    )


def _exact(step: Step, view: View, anchor: Compute) -> tuple[Operand, Operand]:
    """The same for one product."""
    m = step.method
    assert isinstance(m, Matmul)
    left, right = factors(anchor, swapped=m.swapped)
    elements = elements_of(left, right, anchor)
    rows, columns = step.dims[m.m], step.dims[m.n]
    return (
        _lines(m.left, left, elements[0], view)
        if m.runs > 1
        else exact_operand(
            m.left, left, elements[0], _inner(anchor, left, m.left, rows, m.block_m, m), view.places
        ),
        _sparse(m.right, right, anchor, view)
        if m.sparse
        else exact_operand(
            m.right,
            right,
            elements[1],
            _inner(anchor, right, m.right, columns, m.columns, m),
            view.places,
        ),
    )


def _lines(wanted: Operand, factor: Expr, element: DType, view: View) -> Operand:
    """For columns in runs, their contiguous operand: it is copied, or the method does not apply."""
    found = masked(factor)
    if found is None or factor.dtype is not element:
        return Operand(wanted.major, 1, "element")
    place = readable(view.places[found.load.tensor.name], own=False)
    return Operand(wanted.major, min(WIDEST, alignment(place)) // element.itemsize, "async")


def _sparse(wanted: Operand, factor: Expr, anchor: Compute, view: View) -> Operand:
    """For 2:4 sparse values and their positions: they are copied in vectors of half a line, or the method does not apply."""
    found = two_of_four(factor, anchor.reduce[0])
    parts = (found.values, found.places) if found else ()
    wide = all(alignment(readable(view.places[x.tensor.name], own=False)) >= WIDEST for x in parts)
    return wanted if parts and wide else Operand("none", 1, "element")


def _inner(
    anchor: Compute, factor: Expr, operand: Operand, d: Dim, block: int, m: Matmul
) -> tuple[int, ...]:
    """Extents along the operand's major direction."""
    axes = [anchor.reduce[p] for p in m.k]
    if operand.major == "mn":
        return (anchor.axes[d.axes[-1]].extent, d.tile, d.extent, block)
    along = flattened(offset(factor), axes)[1] if isinstance(factor, Load) else axes[-1]
    return (along.extent, m.block_k)
