"""A step that is a product, and its operands, as functors and their `mt::Side`."""

from dataclasses import dataclass
from typing import Literal

from monotile.analysis.contraction import factors, rounded
from monotile.analysis.masked import masked
from monotile.analysis.two_of_four import two_of_four
from monotile.codegen.site import Range, Site, at_start, unflatten
from monotile.codegen.vector import VectorEmitter
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, idx, mul
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_operands import Matrix, Side, write_addresses, write_side
from monotile.kernels.common.cuda_threads import placed
from monotile.kernels.common.product import elements_of
from monotile.kernels.matmul.method import Matmul

Sides = tuple[str, str]  # text of the operands' `mt::Side`s, left and right


@dataclass(frozen=True, slots=True)
class ProductSite:
    """A site whose anchor is the product of the factors `left` and `right`. m, n: its rows and columns. elements: the operands' types on chip."""

    site: Site
    method: Matmul
    anchor: Compute
    m: Range
    n: Range
    left: Expr
    right: Expr
    elements: tuple[DType, DType]

    @property
    def k(self) -> list[Axis]:
        return [self.anchor.reduce[p] for p in self.method.k]


def product_site(site: Site, method: Matmul) -> ProductSite:
    anchor = site.anchor
    if not isinstance(anchor, Compute):
        raise InternalError(f"step {site.step.computes} is no sum of products")
    left, right = factors(anchor, swapped=method.swapped)
    m, n = site.ranges[method.m], site.ranges[method.n]
    return ProductSite(site, method, anchor, m, n, left, right, elements_of(left, right, anchor))


def write_sides(e: VectorEmitter, p: ProductSite) -> Sides:
    """Writes the functors `left` and `right`; gives the text of their `mt::Side`s."""
    left = _write_runs(e, p) if p.method.runs > 1 else _write_operand(e, p, "left")
    return left, _write_operand(e, p, "right")


def _write_operand(e: VectorEmitter, p: ProductSite, name: Literal["left", "right"]) -> str:
    """Writes the functor `name`; gives the text of its `mt::Side`."""
    method = p.method
    if name == "left":
        factor, operand, block, r, across = p.left, method.left, method.block_m, p.m, p.n
    else:
        factor, operand, block, r, across = p.right, method.right, method.block_n, p.n, p.m
    element = p.elements[name == "right"]
    rows = r.dim.tile if r.dim.tile < block else 0
    side = Side(
        element,
        operand,
        check_rows=_reaches_over(r, rows if rows and operand.major != "mn" else block),
        prefetched_chunks=method.ahead("handoff", name),
        task_rows=rows,
        evict_first=method.evicts_first(name),
        rounded=rounded(p.anchor, swapped=method.swapped)[name == "right"],
    )
    matrix = Matrix(name, factor, r.variable, p.k)
    if operand.copy == "sparse":
        return _write_sparse(e, at_start(p.site, across), matrix, side)
    return write_side(e, at_start(p.site, across), matrix, side)


def _write_sparse(e: VectorEmitter, site: Site, matrix: Matrix, side: Side) -> str:
    """Two of each four values, which lie side by side along k, and their places."""
    row, (k,) = matrix.row, matrix.axes
    found = two_of_four(matrix.factor, k)
    assert found is not None
    parts: list[str] = []
    for x, kind in ((found.values, side.kind), (found.places, "mt::u8")):
        point = dict(site.point) | {k.name: idx(0)}
        steps = e.steps(x, point, (row,))
        if steps is None:
            raise InternalError(f"the rows of {x.tensor.name} do not follow each other evenly")
        name = e.writer.fresh(f"{matrix.name}_part")
        text = e.address_of(x, placed(point, {row.name: idx(0)}))
        e.writer.write(f"auto {name} = mt::linear<{kind}, {steps[0]}, 1>((const {kind}*)({text}));")
        parts.append(name)
    e.writer.write(f"auto {matrix.name} = mt::sparse({', '.join(parts)});")
    return side.text


def _reaches_over(r: Range, block: int) -> bool:
    """Whether a block, or what a task has of one, may reach over the last row."""
    return r.dim.extent % r.dim.tile != 0 or r.dim.tile % block != 0


def _write_runs(e: VectorEmitter, p: ProductSite) -> str:
    """The left operand of columns in runs, as `mt::Grouped` reads it: for each value of the axes before the last of k what all runs read,
    side by side. Gives the text of its `mt::Side`."""
    method = p.method
    found = masked(p.left)
    if found is None or p.left.dtype is not p.elements[0]:
        raise InternalError(f"the left side of {p.anchor.out.name} is not copied as it is")
    *before, last = p.k
    run = Axis("run", method.runs)
    matrix = Matrix("left", p.left, p.m.variable, [*before, run, last])
    at = unflatten(matrix.k, matrix.axes)
    column = mul(at.pop(run.name), idx(method.block_n // method.runs))
    point = placed(p.site.point, {p.n.variable.name: column}) | at
    side = Side(p.elements[0], method.left, check_rows=_reaches_over(p.m, method.block_m))
    write_addresses(e, point, matrix, (found,), side)
    return side.text
