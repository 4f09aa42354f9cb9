"""A contraction step: the configuration of `device/cuda/contract.cuh` and the functors that it calls.

The functors are lambdas in the middle of the step: what does not depend on their arguments is computed before them.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack

from monotile.analysis.affine import Affine, flattened, offset
from monotile.analysis.between import between
from monotile.analysis.contraction import contraction
from monotile.analysis.masked import Masked, masked
from monotile.analysis.unconditional import TRUE, unconditional
from monotile.codegen.address import readable
from monotile.codegen.base import Range, Site, at_start, unflatten
from monotile.codegen.cuda_odd_rows import RowResult, row_results, write_copies
from monotile.codegen.cuda_steps import each_batch, fitting, neighbours, placed, vector_width
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter, alignment
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, axes_of, idx, mul, substitute
from monotile.ir.program import Compute
from monotile.schedule.plan import Contract, Operand

ELEMENT: Mapping[DType, str] = {
    DType.F16: "mt::f16",
    DType.BF16: "mt::bf16",
    DType.F32: "float",
    DType.F64: "double",
}
KERNEL = {"wgmma": "WGMMA", "mma.m16n8k16": "MMA", "fma": "FMA"}
WIDTH = 4  # sums that the epilogue takes at once


def write_contract(e: VectorEmitter, site: Site, method: Contract, await_: str) -> None:
    """Batches one by one; in each, blocks of block_m x block_n; in each, the whole block of threads.

    await_: the functor that waits for what the step reads.
    """
    anchor = site.anchor
    found = contraction(anchor) if isinstance(anchor, Compute) else None
    if not isinstance(anchor, Compute) or found is None:
        raise InternalError(f"step {site.step.computes} is no contraction")
    m, n = site.ranges[method.m], site.ranges[method.n]
    left, right = found.facing(m.dim.axes)
    element = _element(left, right, anchor)
    w = e.writer
    with ExitStack() as stack:
        stack.enter_context(each_batch(e, site, (method.m, method.n)))
        for corner, r, block in (("m0", m, method.block_m), ("n0", n, method.block_n)):
            if r.variable.extent > block:
                head = f"for (idx {corner} = 0; {corner} < {r.count}; {corner} += {block})"
                stack.enter_context(w.open(head, [corner], fence=True))
            else:
                w.write(f"const idx {corner} = 0;")
                w.define(corner)
        sides = [
            _lines(e, site, anchor, left, m, n, method, element)
            if method.runs > 1
            else _operand(
                e, at_start(site, n), anchor, left, method.left, m, method, element, "left"
            ),
            _operand(
                e, at_start(site, m), anchor, right, method.right, n, method, element, "right"
            ),
        ]
        width = fitting(vector_width(WIDTH, site, n), method.block_n)
        total = "double" if anchor.body.dtype is DType.F64 else "float"
        by_rows: tuple[RowResult, ...] = ()
        if width == 1 and method.block_n % WIDTH == 0:
            by_rows = row_results(e, site, n, WIDTH, 8 if total == "double" else 4)
            width = WIDTH if by_rows else 1
        write_epilogue(e, site, anchor, m, n, width, by_rows, _columns(e, method, width))
        points = 1
        for p in method.k:
            points *= anchor.reduce[p].extent
        kernel = "RUNS" if method.runs > 1 else KERNEL[method.instruction]
        numbers = ", ".join(
            str(x)
            for x in (
                points, method.block_m, method.block_n, method.block_k, method.warps_m,
                method.warps_n, method.slices, method.depth, width,
                *((method.runs, anchor.reduce[method.k[-1]].extent) if method.runs > 1 else ()),
            )
        )  # fmt: skip
        w.write(
            f"using Shape = mt::Shape<mt::Kernel::{kernel}, {', '.join(sides)}, {total}, {numbers}>;"
        )
        w.write(
            f'static_assert(Shape::BYTES <= {site.step.scratch_bytes}, "the Plan gives a contraction too little memory");'
        )
        epilogue = "epilogue"
        if by_rows:
            write_copies(e, site, m, n, by_rows)
            epilogue = "mt::by_rows(epilogue, singles, rows)"
        w.write(
            f"mt::contract<Shape>(scratch + {site.step.scratch}, m0, {m.count}, n0, {n.count}, left, right, {await_}, fetch, {epilogue});"
        )


def _columns(e: VectorEmitter, method: Contract, width: int) -> str:
    """Text of the first column that a thread finishes, where it has several turns and the same columns in all of them."""
    across, threads = method.block_n // width, e.plan.launch.threads
    if threads % across or method.block_m * across <= threads:
        return ""
    return f"n0 + threadIdx.x % {across} * {width}"


def _element(left: Expr, right: Expr, anchor: Compute) -> DType:
    """The type of the operands' elements in on-chip memory."""
    same = left.dtype is right.dtype and left.dtype in (DType.F16, DType.BF16)
    return left.dtype if same else anchor.body.dtype


def _operand(
    e: VectorEmitter,
    site: Site,
    anchor: Compute,
    factor: Expr,
    operand: Operand,
    r: Range,
    method: Contract,
    element: DType,
    name: str,
) -> str:
    """Writes the functor `name`; gives the text of its `mt::Side`."""
    block = method.block_m if name == "left" else method.block_n
    axes = [anchor.reduce[p] for p in method.k]
    along_k = flattened(offset(factor), axes)[1] if isinstance(factor, Load) else axes[-1]
    inner = (
        (along_k.extent, method.block_k)
        if operand.major != "mn"
        else (anchor.axes[r.dim.axes[-1]].extent, r.dim.tile, r.dim.extent, block)
    )
    checked = r.dim.extent % r.dim.tile != 0 or r.dim.tile % block != 0
    factors = (factor, operand, element)
    return write_side(e, site, factors, r.variable, axes, inner, name, checked=checked)


def _lines(
    e: VectorEmitter,
    site: Site,
    anchor: Compute,
    factor: Expr,
    m: Range,
    n: Range,
    method: Contract,
    element: DType,
) -> str:
    """The left operand of columns in runs, as `mt::Runs` reads it: for each value of the axes before the last of k what all runs read,
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
    _addresses(e, point, found, m.variable, k, "left", ELEMENT[element])
    checked = m.dim.extent % m.dim.tile != 0 or m.dim.tile % method.block_m != 0
    return f"mt::Side<{ELEMENT[element]}, true, mt::Copy::ASYNC, {width}, {_bool(checked)}>"


def write_side(
    e: VectorEmitter,
    site: Site,
    what: tuple[Expr, Operand, DType],
    row: Axis,
    axes: Sequence[Axis],
    inner: Sequence[int],
    name: str,
    *,
    checked: bool,
) -> str:
    """Writes the functor `name` of (factor, how it is read, element type on chip); gives the text of its `mt::Side`.

    row: the variable along its rows. axes: those along k. inner: extents along its major direction, of which a vector
    divides each. checked: whether a block may reach over the last row.
    """
    factor, operand, element = what
    k = Axis("k", math.prod(a.extent for a in axes))
    along_k = operand.major != "mn"
    width = fitting(min(16 // element.itemsize, operand.vector), *inner)
    kind = ELEMENT[element]
    copied = masked(factor) if operand.copy == "async" and factor.dtype is element else None
    if copied is not None:
        place = readable(e.plan.places[copied.load.tensor.name], own=False)
        width = min(width, alignment(place) // element.itemsize)
    if copied is not None and width * element.itemsize >= 4:
        _addresses(e, dict(site.point) | unflatten(k, axes), copied, row, k, name, kind)
        copy = "ASYNC"
    else:
        _values(e, site, factor, row, k, axes, name, (element, width), along_k=along_k)
        copy = "ELEMENT"
    ahead = f", {operand.ahead}" if operand.ahead else ""
    return f"mt::Side<{kind}, {_bool(along_k)}, mt::Copy::{copy}, {width}, {_bool(checked)}{ahead}>"


def _addresses(
    e: VectorEmitter,
    point: dict[str, Expr],
    factor: Masked,
    row: Axis,
    k: Axis,
    name: str,
    kind: str,
) -> None:
    """The operand `name`, read where it lies: in even steps, or wherever a lambda says. point: what the axes are, of `row` and `k`."""
    guarded = factor.cond != TRUE
    steps = None if guarded else e.steps(factor.load, point, (row, k))
    if steps is not None:
        start = {row.name: idx(0), k.name: idx(0)}
        text = e.address_of(factor.load, placed(point, start))
        numbers = ", ".join(str(s) for s in steps)
        e.writer.write(f"auto {name} = mt::linear<{kind}, {numbers}>((const {kind}*)({text}));")
        return
    kinds, given = (f"{kind}, true", f"mt::Source<{kind}>") if guarded else (kind, f"const {kind}*")
    head = f"auto {name} = mt::addressed<{kinds}>([&](idx {row.name}, idx k) -> {given}"
    with e.writer.open(head, [row.name, "k"], tail=");"):
        at = f"(const {kind}*)({e.address_of(factor.load, point, summed=True)})"
        there = _at_once(e, factor.cond, point) if guarded else ""
        e.writer.write(f"return {{{at}, {there}}};" if guarded else f"return {at};")


def _at_once(e: VectorEmitter, cond: Expr, point: Mapping[str, Expr]) -> str:
    """Text of `cond` without branches; two bounds of a value are one comparison."""
    bounds, rest = between(substitute(cond, dict(point)))
    texts = [e.root(term) for term in rest]
    for b in bounds:
        texts.append(
            f"mt::within({bare(e.total(b.value + Affine((), -b.low)))}, {b.high - b.low + 1})"
        )
    return f"({' & '.join(texts)}) != 0"


def _values(
    e: VectorEmitter,
    site: Site,
    factor: Expr,
    row: Axis,
    k: Axis,
    axes: Sequence[Axis],
    name: str,
    element: tuple[DType, int],
    *,
    along_k: bool,
) -> None:
    """The operand `name`, computed: a lambda that gives vectors of (type, width) `element`."""
    dtype, width = element
    kind = ELEMENT[dtype]
    head = f"auto {name} = mt::evaluated<{kind}, {width}>([&](idx {row.name}, idx k)"
    with e.writer.open(head, [row.name, "k"], tail=");"):
        column = _neighbours(e, k, width) if along_k else k
        line = row if along_k else _neighbours(e, row, width)
        point = placed(site.point, {row.name: line}) | unflatten(column, axes)
        e.writer.write(f"mt::Pack<{kind}, {width}> values;")
        with e.vector(width):
            text = bare(e.body(factor, point))
            e.writer.write(f"values[{'lane' if width > 1 else 0}] = mt::cast<{kind}>({text});")
        e.writer.write("return values;")


def _neighbours(e: VectorEmitter, first: Axis, width: int) -> Expr:
    """Writes what `neighbours` of the variable `first` are made of; gives these."""
    if width > 1:
        vector = f"{first.name}_vector"
        e.writer.write(f"__builtin_assume({first.name} % {width} == 0);")
        e.writer.write(f"const idx {vector} = (uint32_t){first.name} / {width}u;")
        e.writer.define(vector)
    return neighbours(first, width)


def _bool(x: bool) -> str:
    return "true" if x else "false"


def write_epilogue(
    e: VectorEmitter,
    site: Site,
    anchor: Compute,
    m: Range,
    n: Range,
    width: int,
    by_rows: Sequence[RowResult] = (),
    first: str = "",
) -> None:
    """The lambdas `fetch`, of what follows the sums' other operands, and `epilogue`, which computes and stores. If some results
    leave by rows, `epilogue` has them wait in cells, and `singles` stores one element where it belongs.

    first: text of a thread's first column, if it has the same ones in all its turns: what depends on these alone it loads once.
    """
    e.cells = {r.made.out.name: r.cell for r in by_rows}
    row, column = m.variable.name, n.variable.name
    point = placed(site.point, {column: neighbours(n.variable, width)})
    own = {anchor.out.name, *(s.out.name for s in site.followers)}
    wanted = dict.fromkeys(
        x
        for s in site.followers
        for x in unconditional(substitute(s.body, point))
        if x.tensor.name not in own
    )
    w = e.writer
    steady = dict[Load, Expr]()
    if first:
        steady = {x: TRUE for x in wanted if x.tensor.name in e.constant and m.variable not in axes_of(x)}  # fmt: skip
    columns = dict[Hashable, str]()
    if steady:
        with w.open(f"auto fetch_columns = [&](idx {column})", [column], fence=True, tail=";"):
            _neighbours(e, n.variable, width)
            columns = e.held(steady, width, "columns")
        w.write("decltype(fetch_columns(0)) columns{};")
        head = f"if (const idx {column} = {first}; {column} + {width} <= {n.count})"
        with w.open(head, [column], fence=True):
            w.write(f"columns = fetch_columns({column});")
    with w.open(f"auto fetch = [&](idx {row}, idx {column})", [row, column], fence=True, tail=";"):
        _neighbours(e, n.variable, width)
        held = columns | e.held({x: TRUE for x in wanted if x not in steady}, width)
    total = "double" if anchor.body.dtype is DType.F64 else "float"
    sums = f"const mt::Pack<{total}, {width}>& sums, const decltype(fetch(0, 0))& held, bool live"
    sums += ", char* cell" if by_rows else ""
    head = f"auto epilogue = [&](idx {row}, idx {column}, {sums})"
    with w.open(head, [row, column], fence=True, tail=";") as block:
        _neighbours(e, n.variable, width)
        block.names.update(held)
        with e.vector(width):
            at = "lane" if width > 1 else "0"
            e.stored_if = "live"
            e.finish(site, point, f"sums[{at}]", anchor.body.dtype)
    e.cells, e.stored_if = {}, ""
    if by_rows:
        head = f"auto singles = [&](idx {row}, idx {column}, const mt::Pack<{total}, 1>& sums)"
        with w.open(head, [row, column], fence=True, tail=";"):
            e.finish(site, site.point, "sums[0]", anchor.body.dtype)
