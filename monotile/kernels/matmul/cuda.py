"""A contraction step: the configuration of `targets/cuda/device/contract.cuh` and the functors that it calls.

The functors are lambdas in the middle of the step: what does not depend on their arguments is computed before them.
"""

from collections.abc import Hashable, Sequence
from contextlib import ExitStack

from monotile.analysis.contraction import contraction
from monotile.analysis.unconditional import TRUE, unconditional
from monotile.codegen.base import Range, Site, at_start
from monotile.codegen.vector import VectorEmitter
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Load, axes_of, substitute
from monotile.ir.program import Compute, value_of
from monotile.kernels.common.cuda_operands import neighbours_of, write_lines, write_operand
from monotile.kernels.common.cuda_threads import (
    each_batch,
    fitting,
    neighbours,
    placed,
    vector_width,
)
from monotile.kernels.matmul.cuda_unaligned import RowResult, row_results, write_copies
from monotile.plan.nodes import Contract

KERNEL = {"wgmma": "WGMMA", "mma.m16n8k16": "MMA", "fma": "FMA"}
WIDTH = 4  # sums that the epilogue takes at once
Sides = tuple[str, str]  # text of the operands' `mt::Side`s, left and right


def write_contract(
    e: VectorEmitter,
    site: Site,
    method: Contract,
    await_: str,
    in_a_row: tuple[Sides, int, int] | None = None,
) -> None:
    """Batches one by one; in each, blocks of block_m x block_n; in each, the whole block of threads.

    await_: the functor that waits for what the step reads. in_a_row: of a task with one block, whose operands the functor `operands`
    has (`write_operands`): the text of their `mt::Side`s, how many tasks there are, and how many lie between two of a worker.
    """
    anchor = _anchor(site)
    m, n = site.ranges[method.m], site.ranges[method.n]
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
        left_side, right_side = in_a_row[0] if in_a_row else _write_sides(e, site, method)
        width = fitting(vector_width(WIDTH, site, n), method.block_n)
        total = "double" if anchor.body.dtype is DType.F64 else "float"
        by_rows: tuple[RowResult, ...] = ()
        if width == 1 and method.block_n % WIDTH == 0:
            by_rows = row_results(e, site, n, WIDTH, 8 if total == "double" else 4)
            width = WIDTH if by_rows else 1
        columns = _columns(e, method, (m, n), width)
        write_epilogue(e, site, anchor, m, n, width, by_rows, columns)
        points = 1
        for p in method.k:
            points *= anchor.reduce[p].extent
        kernel = "RUNS" if method.runs > 1 else KERNEL[method.instruction]
        numbers = ", ".join(
            str(x)
            for x in (
                points, method.block_m, method.block_n, method.block_k, method.warps_m,
                method.warps_n, method.slices, method.depth, width,
                *((method.teams,) if method.teams > 1 or method.runs > 1 or method.following else ()),
                *((method.runs, anchor.reduce[method.k[-1]].extent) if method.runs > 1 or method.following else ()),
                *((method.following,) if method.following else ()),
            )
        )  # fmt: skip
        w.write(
            f"using Shape = mt::Shape<mt::Kernel::{kernel}, {left_side}, {right_side}, {total}, {numbers}>;"
        )
        w.write(
            f'static_assert(Shape::BYTES <= {site.step.scratch_bytes}, "the Plan gives a contraction too little memory");'
        )
        if columns:
            w.write("static_assert(Shape::STEADY_COLUMNS);")
        epilogue = "epilogue"
        if by_rows:
            write_copies(e, site, m, n, by_rows)
            epilogue = "mt::by_rows(epilogue, singles, rows)"
        call = f"mt::contract<Shape>(scratch + {site.step.scratch}, m0, {m.count}, n0, {n.count}, left, right, {await_}, fetch, {epilogue}"
        if in_a_row is None:
            w.write(f"{call});")
            return
        _, tasks, apart = in_a_row
        later = f"mt_min_idx(task + {apart}, {tasks - 1})"
        w.write(f"auto next = [&](auto& use) {{ operands({later}, use); }};")
        given = "const auto& left, const auto& right, int, int, int, int"
        with w.open(f"operands(task, [&]({given})", tail=");"):
            w.write(f"{call}, mt::in_a_row(begun, task + {apart} < {tasks}, next));")


def write_operands(e: VectorEmitter, site: Site, method: Contract) -> Sides:
    """The body of the functor `operands`: calls `use(left, right, m0, m1, n0, n1)` of a task's one block. Gives the text of both
    `mt::Side`s."""
    m, n = site.ranges[method.m], site.ranges[method.n]
    with each_batch(e, site, (method.m, method.n)):
        sides = _write_sides(e, site, method)
        e.writer.write(f"use(left, right, 0, {m.count}, 0, {n.count});")
    return sides


def _write_sides(e: VectorEmitter, site: Site, method: Contract) -> Sides:
    """The functors `left` and `right`; gives the text of their `mt::Side`s."""
    anchor = _anchor(site)
    found = contraction(anchor)
    assert found is not None
    m, n = site.ranges[method.m], site.ranges[method.n]
    left, right = found.facing(m.dim.axes)
    element = _element(left, right, anchor)
    if method.runs > 1:
        left_side = write_lines(e, site, anchor, left, m, n, method, element)
    else:
        left_side = write_operand(e, at_start(site, n), anchor, left, m, method, element, "left")
    return left_side, write_operand(
        e, at_start(site, m), anchor, right, n, method, element, "right"
    )


def _anchor(site: Site) -> Compute:
    if not isinstance(site.anchor, Compute) or contraction(site.anchor) is None:
        raise InternalError(f"step {site.step.computes} is no contraction")
    return site.anchor


def _columns(e: VectorEmitter, method: Contract, sides: tuple[Range, Range], width: int) -> str:
    """Text of the first column that a thread finishes, where it has several turns and the same columns in all of them (as
    `STEADY_COLUMNS` of `mt::Shape` has it)."""
    m, n = sides
    rows, columns = min(method.block_m, m.dim.tile), min(method.block_n, n.dim.tile)
    across, threads = -(-columns // width), e.plan.launch.threads // method.teams
    if across > threads or 8 * (threads % across) > threads or rows * across <= threads:
        return ""
    thread = "threadIdx.x" if method.teams == 1 else f"threadIdx.x % {threads}"
    return f"n0 + {thread} % {across} * {width}"


def _element(left: Expr, right: Expr, anchor: Compute) -> DType:
    """The type of the operands' elements in on-chip memory."""
    same = left.dtype is right.dtype and left.dtype in (DType.F16, DType.BF16)
    return left.dtype if same else anchor.body.dtype


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
        for x in unconditional(substitute(value_of(s), point))
        if x.tensor.name not in own
    )
    w = e.writer
    steady = dict[Load, Expr]()
    if first:
        steady = {x: TRUE for x in wanted if x.tensor.name in e.constant and m.variable not in axes_of(x)}  # fmt: skip
    columns = dict[Hashable, str]()
    if steady:
        with w.open(f"auto fetch_columns = [&](idx {column})", [column], fence=True, tail=";"):
            neighbours_of(e, n.variable, width)
            columns = e.held(steady, width, "columns")
        w.write("mt::Words<decltype(fetch_columns(0))> asked_columns{};")
        head = f"if (const idx {column} = {first}; {column} + {width} <= {n.count})"
        with w.open(head, [column], fence=True):
            w.write(f"asked_columns = mt::words(fetch_columns({column}));")
    with w.open(f"auto fetch = [&](idx {row}, idx {column})", [row, column], fence=True, tail=";"):
        neighbours_of(e, n.variable, width)
        held = columns | e.held({x: TRUE for x in wanted if x not in steady}, width)
    total = "double" if anchor.body.dtype is DType.F64 else "float"
    sums = f"const mt::Pack<{total}, {width}>& sums, const decltype(fetch(0, 0))& held, bool live"
    sums += ", char* cell" if by_rows else ""
    head = f"auto epilogue = [&](idx {row}, idx {column}, {sums})"
    with w.open(head, [row, column], fence=True, tail=";") as block:
        neighbours_of(e, n.variable, width)
        if columns:
            w.write("const auto columns = asked_columns.whole();")
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
