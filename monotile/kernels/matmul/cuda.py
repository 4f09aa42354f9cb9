"""A contraction step: the configuration of `targets/cuda/device/contract.cuh` and the functors that it calls.

The functors are lambdas in the middle of the step: what does not depend on their arguments is computed before them.
"""

from contextlib import ExitStack

from monotile.analysis.contraction import factors
from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range, Site, at_start
from monotile.codegen.vector import VectorEmitter
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_config import PRODUCT, config
from monotile.kernels.common.cuda_epilogue import KERNEL, write_epilogue
from monotile.kernels.common.cuda_threads import each_batch
from monotile.kernels.common.cuda_unaligned import write_copies
from monotile.kernels.common.epilogue import row_results
from monotile.kernels.matmul.cuda_operands import write_lines, write_operand
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.sides import element_of

Sides = tuple[str, str]  # text of the operands' `mt::Side`s, left and right


def write(e: BlockEmitter, site: Site) -> None:
    """A step that is a product."""
    method = site.step.method
    assert isinstance(method, Matmul)
    write_product(e, site, method, e.await_)


def write_product(
    e: VectorEmitter,
    site: Site,
    method: Matmul,
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
        width = method.epilogue.width
        total = "double" if anchor.body.dtype is DType.F64 else "float"
        by_rows = row_results(e.view, site, method.n, width) if method.epilogue.by_rows else ()
        columns = _columns(e, method, n) if method.epilogue.steady else ""
        write_epilogue(e, site, anchor, m, n, width, by_rows, columns)
        points = 1
        for p in method.k:
            points *= anchor.reduce[p].extent
        kernel = "GROUPED" if method.runs > 1 else KERNEL[method.instruction]
        fields = config(
            "ProductConfig", PRODUCT, kernel=f"mt::Kernel::{kernel}", k=points, block_m=method.block_m,
            block_n=method.block_n, block_k=method.block_k, warps_m=method.warps_m, warps_n=method.warps_n,
            slices=method.slices, depth=method.depth, vector=width, teams=method.teams, groups=method.runs,
            group_k=anchor.reduce[method.k[-1]].extent if method.runs > 1 else 1, next_task_chunks=method.following,
        )  # fmt: skip
        w.write(f"using Left = {left_side};")
        w.write(f"using Right = {right_side};")
        w.write(f"using Product = mt::Product<{fields}, Left, Right, {total}>;")
        w.write(
            f'static_assert(Product::BYTES <= {site.step.scratch_bytes}, "The Plan gives a product too little shared memory.");'
        )
        if columns:
            w.write(
                'static_assert(Product::FIXED_COLUMNS, "A thread must have the same columns in all steps of the epilogue.");'
            )
        epilogue = "epilogue"
        if by_rows:
            write_copies(e, site, m, n, by_rows)
            epilogue = "mt::unaligned_stores(epilogue, singles, rows)"
        call = f"mt::contract<Product>(scratch + {site.step.scratch}, m0, {m.count}, n0, {n.count}, left, right, {await_}, fetch, {epilogue}"
        if in_a_row is None:
            w.write(f"{call});")
            return
        _, tasks, apart = in_a_row
        later = f"mt_min_idx(task + {apart}, {tasks - 1})"
        w.write(f"auto next = [&](auto& use) {{ operands({later}, use); }};")
        given = "const auto& left, const auto& right, int, int, int, int"
        with w.open(f"operands(task, [&]({given})", tail=");"):
            w.write(f"{call}, mt::task_sequence(prefetched, task + {apart} < {tasks}, next));")


def write_operands(e: VectorEmitter, site: Site, method: Matmul) -> Sides:
    """The body of the functor `operands`: calls `use(left, right, m0, m1, n0, n1)` of a task's one block. Gives the text of both
    `mt::Side`s."""
    m, n = site.ranges[method.m], site.ranges[method.n]
    with each_batch(e, site, (method.m, method.n)):
        sides = _write_sides(e, site, method)
        e.writer.write(f"use(left, right, 0, {m.count}, 0, {n.count});")
    return sides


def _write_sides(e: VectorEmitter, site: Site, method: Matmul) -> Sides:
    """The functors `left` and `right`; gives the text of their `mt::Side`s."""
    anchor = _anchor(site)
    m, n = site.ranges[method.m], site.ranges[method.n]
    left, right = factors(anchor, swapped=method.swapped)
    element = element_of(left, right, anchor)
    if method.runs > 1:
        left_side = write_lines(e, site, anchor, left, m, n, method, element)
    else:
        left_side = write_operand(e, at_start(site, n), anchor, left, m, method, element, "left")
    return left_side, write_operand(
        e, at_start(site, m), anchor, right, n, method, element, "right"
    )


def _anchor(site: Site) -> Compute:
    if not isinstance(site.anchor, Compute):
        raise InternalError(f"step {site.step.computes} is no sum of products")
    return site.anchor


def _columns(e: VectorEmitter, method: Matmul, n: Range) -> str:
    """Text of the first column that a thread finishes in all its turns."""
    width, threads = method.epilogue.width, e.plan.launch.threads // method.teams
    across = -(-min(method.block_n, n.dim.tile) // width)
    thread = "threadIdx.x" if method.teams == 1 else f"threadIdx.x % {threads}"
    return f"n0 + {thread} % {across} * {width}"
