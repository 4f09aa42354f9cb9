"""The operands of attention in the form in which its step reads them."""

from monotile.codegen.view import View
from monotile.ir.program import Compute
from monotile.kernels.attention.match import stored
from monotile.kernels.attention.method import Attend
from monotile.kernels.common.operand import Operand, exact_operand
from monotile.kernels.common.vectors import elements
from monotile.plan.nodes import Step


def exact_sides(step: Step, view: View) -> tuple[Operand, Operand, Operand]:
    """The best way for warps to load queries, keys and values, given the method's wishes."""
    a, names = step.method, step.computes[: step.anchor + 1]
    assert isinstance(a, Attend)
    found = stored(a, [s for n in names if isinstance(s := view.statements[n], Compute)])
    element, deep = found.values.dtype, (found.products.reduce[0].extent,)
    row = step.dims[a.m]
    rows = (found.result.axes[row.axes[-1]].extent, row.tile)
    keys, columns = (found.key.extent, a.chunk), (elements((step.dims[a.n],)),)
    sides = (
        (a.query, found.queries, rows if a.query.major == "mn" else deep),
        (a.key, found.keys, keys if a.key.major == "mn" else deep),
        (a.value, found.values, columns if a.value.major == "mn" else keys),
    )
    query, key, value = (exact_operand(o, x, element, inner, view.places) for o, x, inner in sides)
    return query, key, value
