"""The operands of a product step, as functors and their `mt::Side`."""

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
from monotile.kernels.matmul.gate import sums_in
from monotile.kernels.matmul.method import Matmul

Sides = tuple[str, str]  # text of the operands' `mt::Side`s, left and right


@dataclass(frozen=True, slots=True)
class ProductSite:
    """A site whose anchor is the product of the factors `left` and `right`, or is computed from several products, with a right factor each.
    m, n: the ranges of rows and columns. elements: the operands' types on chip."""

    site: Site
    method: Matmul
    sums: tuple[Compute, ...]
    m: Range
    n: Range
    left: Expr
    rights: tuple[Expr, ...]
    elements: tuple[DType, DType]

    @property
    def anchor(self) -> Compute:
        """The product, or the first of several."""
        return self.sums[0]

    @property
    def k(self) -> list[Axis]:
        return [self.anchor.reduce[p] for p in self.method.k]


def product_site(site: Site, method: Matmul) -> ProductSite:
    sums = sums_in((*site.before, site.anchor))
    if len(sums) != method.products:
        raise InternalError(f"step {site.step.computes} is no sum of products")
    sides = [factors(s, swapped=method.swapped) for s in sums]
    rights = tuple(right for _, right in sides)
    m, n, (left, right) = site.ranges[method.m], site.ranges[method.n], sides[0]
    return ProductSite(site, method, sums, m, n, left, rights, elements_of(left, right, sums[0]))


def write_sides(e: VectorEmitter, p: ProductSite) -> Sides:
    """Writes the functors `left` and `right`. Returns the text of their `mt::Side`s."""
    left = _write_runs(e, p) if p.method.runs > 1 else _write_operand(e, p, "left")
    return left, _write_operand(e, p, "right")


def _write_operand(e: VectorEmitter, p: ProductSite, name: Literal["left", "right"]) -> str:
    """Writes the functor `name`. Returns the text of its `mt::Side`. The right operands of several products are stacked."""
    method = p.method
    if name == "left":
        factors_, operand, block, r, across = (p.left,), method.left, method.block_m, p.m, p.n
    else:
        factors_, operand, block, r, across = p.rights, method.right, method.columns, p.n, p.m
    element = p.elements[name == "right"]
    rows = r.dim.tile if r.dim.tile < block else 0
    whole = rows and operand.major != "mn" and len(factors_) == 1
    side = Side(
        element,
        operand,
        check_rows=_reaches_over(r, rows if whole else block),
        prefetched_chunks=method.ahead("handoff", name),
        task_rows=rows,
        evict_first=method.evicts_first(name),
        rounded=rounded(p.anchor, swapped=method.swapped)[name == "right"],
    )
    start = at_start(p.site, across)
    if operand.copy == "sparse":
        return _write_sparse(e, start, Matrix(name, p.rights[0], r.variable, p.k), side)
    several = [f"{name}_{k}" for k in range(len(factors_))] if len(factors_) > 1 else [name]
    for own, factor in zip(several, factors_, strict=True):
        write_side(e, start, Matrix(own, factor, r.variable, p.k), side)
    if len(several) > 1:
        e.writer.write(f"auto {name} = mt::stacked({', '.join(several)});")
    return side.text


def _write_sparse(e: VectorEmitter, site: Site, matrix: Matrix, side: Side) -> str:
    """Writes the functors of a 2:4 sparse operand: two of each four values, which are contiguous along k, and their positions."""
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
    """Whether a block, or a task's part of one, may extend beyond the last row."""
    return r.dim.extent % r.dim.tile != 0 or r.dim.tile % block != 0


def _write_runs(e: VectorEmitter, p: ProductSite) -> str:
    """Writes the left operand for columns in runs, as `mt::Grouped` reads it: for each value of k's axes but the last, the contiguous
    elements of all runs. Returns the text of its `mt::Side`."""
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
