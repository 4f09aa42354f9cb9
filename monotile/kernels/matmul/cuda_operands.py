"""The operands of a product, as functors and their `mt::Side`."""

import math
from typing import Literal

from monotile.analysis.masked import masked
from monotile.codegen.address import alignment, readable
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.vector import VectorEmitter
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, idx, mul
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_operands import ELEMENT, side_text, write_addresses, write_side
from monotile.kernels.common.cuda_threads import placed
from monotile.kernels.matmul.method import Matmul


def write_operand(
    e: VectorEmitter,
    site: Site,
    anchor: Compute,
    factor: Expr,
    r: Range,
    method: Matmul,
    element: DType,
    name: Literal["left", "right"],
) -> str:
    """Writes the functor `name`; gives the text of its `mt::Side`."""
    operand = method.left if name == "left" else method.right
    block = method.block_m if name == "left" else method.block_n
    axes = [anchor.reduce[p] for p in method.k]
    factors = (factor, operand, element)
    rows = r.dim.tile if r.dim.tile < block else 0
    checked = _reaches_over(r, rows if rows and operand.major != "mn" else block)
    return write_side(
        e, site, factors, r.variable, axes, name,
        checked=checked, rows=rows, ahead=method.ahead("handoff", name), once=method.evicts_first(name),
    )  # fmt: skip


def _reaches_over(r: Range, block: int) -> bool:
    """Whether a block, or what a task has of one, may reach over the last row."""
    return r.dim.extent % r.dim.tile != 0 or r.dim.tile % block != 0


def write_lines(
    e: VectorEmitter,
    site: Site,
    anchor: Compute,
    factor: Expr,
    m: Range,
    n: Range,
    method: Matmul,
    element: DType,
) -> str:
    """The left operand of columns in runs, as `mt::Grouped` reads it: for each value of the axes before the last of k what all runs read,
    side by side. Gives the text of its `mt::Side`."""
    *before, last = (anchor.reduce[p] for p in method.k)
    run = Axis("run", method.runs)
    k = Axis("k", math.prod(a.extent for a in (*before, run, last)))
    at = unflatten(k, [*before, run, last])
    column = mul(at.pop(run.name), idx(method.block_n // method.runs))
    point = placed(site.point, {n.variable.name: column}) | at
    found = masked(factor)
    if found is None or factor.dtype is not element:
        raise InternalError(f"the left side of {anchor.out.name} is not copied as it is")
    place = readable(e.plan.places[found.load.tensor.name], own=False)
    width = min(16, alignment(place)) // element.itemsize
    write_addresses(e, point, found, m.variable, k, "left", ELEMENT[element])
    return side_text(
        element, "ASYNC", width, along_k=True, checked=_reaches_over(m, method.block_m)
    )
