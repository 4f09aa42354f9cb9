"""A contraction step: the configuration of `targets/cuda/device/contract.cuh` and the functors that it calls."""

import math
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Site
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.kernels.common.cuda_config import PRODUCT, config
from monotile.kernels.common.cuda_epilogue import KERNEL, Parts, Sums, write_epilogue
from monotile.kernels.common.cuda_prefetch_rows import prefetch_next_rows, take, write_prefetch
from monotile.kernels.common.cuda_rows import each_round, rows_of
from monotile.kernels.common.cuda_threads import each_batch
from monotile.kernels.common.cuda_unaligned import write_copies
from monotile.kernels.common.epilogue import row_results
from monotile.kernels.matmul.cuda_operands import ProductSite, Sides, product_site, write_sides
from monotile.kernels.matmul.gate import gate_in
from monotile.kernels.matmul.method import Matmul, MatmulRows


@dataclass(frozen=True, slots=True)
class TaskSequence:
    """A worker's tasks of one block each, one after the other; the functor `operands` (`write_operands`) has their operands. sides: text of
    their `mt::Side`s. tasks: of all workers together. stride: from a worker's task to its next one."""

    sides: Sides
    tasks: str
    stride: int


def write(e: BlockEmitter, site: Site) -> None:
    """Writes a step that is a product."""
    method = site.step.method
    assert isinstance(method, Matmul)
    write_product(e, product_site(site, method), e.await_)


def write_product(
    e: VectorEmitter, p: ProductSite, await_: str, sequence: TaskSequence | None = None
) -> None:
    """Loops over the batches, then over blocks of block_m x block_n; all threads of the block compute one at a time. await_: the functor of
    the hand-off before the operands. sequence: the worker's tasks, if the next one's operands are prefetched."""
    with _each_block(e, p):
        sides = sequence.sides if sequence else write_sides(e, p)
        after = (
            _write_rows(e, p, p.method, sides)
            if isinstance(p.method, MatmulRows)
            else _write_elements(e, p, sides)
        )
        operands = ", ".join(_bounded(e, p, name) for name in ("left", "right"))
        call = f"mt::contract<Product>(scratch + {p.site.step.scratch}, m0, {p.m.count}, n0, {p.n.count}, {operands}, {await_}, {after}"
        if sequence is None:
            e.writer.write(f"{call});")
        else:
            _write_in_sequence(e, call, sequence)


def write_operands(e: VectorEmitter, p: ProductSite) -> Sides:
    """Writes the body of the functor `operands`: calls `use(left, right, m0, m1, n0, n1)` for a task's single block. Returns the text of
    both `mt::Side`s."""
    with each_batch(e, p.site, (p.method.m, p.method.n)):
        sides = write_sides(e, p)
        e.writer.write(f"use(left, right, 0, {p.m.count}, 0, {p.n.count});")
    return sides


def _bounded(e: VectorEmitter, p: ProductSite, name: str) -> str:
    """Text of the functor `name`, limited to the live part of k."""
    span = p.site.spans.get(p.k[0].name)
    return name if span is None else f"mt::bounded({name}, {bare(e.index(span.end))})"


@contextmanager
def _each_block(e: VectorEmitter, p: ProductSite) -> Generator[None]:
    """Loops over the batches and the blocks, with the corner of a block in `m0` and `n0`."""
    w, method = e.writer, p.method
    with ExitStack() as stack:
        stack.enter_context(each_batch(e, p.site, (method.m, method.n)))
        for corner, r, block in (("m0", p.m, method.block_m), ("n0", p.n, method.columns)):
            if r.variable.extent > block:
                head = f"for (idx {corner} = 0; {corner} < {r.count}; {corner} += {block})"
                stack.enter_context(w.open(head, [corner], fence=True))
            else:
                w.write(f"const idx {corner} = 0;")
                w.define(corner)
        yield


def _write_elements(e: VectorEmitter, p: ProductSite, sides: Sides) -> str:
    """Writes the functors of an element-wise epilogue. Returns their text."""
    sums = _sums(e, p)
    write_epilogue(e, p.site, sums)
    _write_types(e, p, sides, sums)
    if not sums.by_rows:
        return "fetch, epilogue"
    write_copies(e, p.site, p.m, p.n, sums.by_rows)
    return "fetch, mt::unaligned_stores(epilogue, singles, rows)"


def _write_rows(e: VectorEmitter, p: ProductSite, method: MatmulRows, sides: Sides) -> str:
    """Writes the functors of a row-wise epilogue. Returns their text."""
    w, threads = e.writer, e.plan.launch.threads // method.teams
    _write_types(e, p, sides, Sums(p.m, p.n, p.anchor.body.dtype, 1))
    thread = "threadIdx.x" if method.teams == 1 else f"threadIdx.x % {threads}"
    w.write(f"const idx group_lane = threadIdx.x % {method.lanes}, group = {thread} / {method.lanes};")  # fmt: skip
    w.define("group_lane")
    w.define("group")
    at = f"sums + {p.m.variable.name} * Product::SUM_PITCH + start * {method.vector}"
    step = rows_of(e, p.site, method, p.m, threads, f"mt::total<Product, {method.vector}>({at})")
    prefetched = write_prefetch(step)
    head = "auto rows = [&](const Product::Sum* sums)"
    with w.open(head, ["sums"], fence=True, tail=";"), each_round(step):
        prefetch_next_rows(step, prefetched.by_round)
        take(step, prefetched.once, "early")
        step.evaluate()
    return "mt::NoFetch{}, mt::row_epilogue(ahead, rows)"


def _sums(e: VectorEmitter, p: ProductSite) -> Sums:
    method = p.method
    width, threads = method.epilogue.width, e.plan.launch.threads // method.teams
    by_rows = row_results(e.view, p.site, method.n, width) if method.epilogue.by_rows else ()
    first_column = ""
    if method.epilogue.steady:
        across = -(-min(method.columns, p.n.dim.tile) // width)
        thread = "threadIdx.x" if method.teams == 1 else f"threadIdx.x % {threads}"
        first_column = f"n0 + {thread} % {across} * {width}"
    gate = gate_in((*p.site.before, p.site.anchor))
    parts = Parts(gate.product.out, tuple(s.out for s in gate.sums), gate.value) if gate else None
    return Sums(p.m, p.n, p.anchor.body.dtype, width, by_rows, first_column, parts)


def _write_types(e: VectorEmitter, p: ProductSite, sides: Sides, sums: Sums) -> None:
    """Writes the type `Product`, and assertions of the Plan's assumptions about it."""
    method, w = p.method, e.writer
    kernel = (
        "GROUPED" if method.runs > 1 else "SPARSE" if method.sparse else KERNEL[method.instruction]
    )
    fields = config(
        "ProductConfig", PRODUCT, kernel=f"mt::Kernel::{kernel}", k=math.prod(a.extent for a in p.k), block_m=method.block_m,
        block_n=method.block_n, block_k=method.block_k, warps_m=method.warps_m, warps_n=method.warps_n,
        slices=method.slices, depth=method.depth, vector=sums.width, teams=method.teams, groups=method.runs,
        group_k=p.k[-1].extent if method.runs > 1 else 1, passes=method.passes, next_task_chunks=method.following,
        products=method.products,
    )  # fmt: skip
    for name, text in zip(("Left", "Right"), sides, strict=True):
        w.write(f"using {name} = {text};")
    w.write(f"using Product = mt::Product<{fields}, Left, Right, {sums.accumulator}>;")
    w.write(
        f'static_assert(Product::BYTES <= {p.site.step.scratch_bytes}, "The Plan gives a product too little shared memory.");'
    )
    if sums.first_column:
        w.write(
            'static_assert(Product::FIXED_COLUMNS, "A thread must have the same columns in all steps of the epilogue.");'
        )


def _last(tasks: str) -> str:
    return str(int(tasks) - 1) if tasks.isdigit() else f"{tasks} - 1"


def _write_in_sequence(e: VectorEmitter, call: str, sequence: TaskSequence) -> None:
    """Writes the call, with the functor that prefetches the operands of the worker's next task. call: its text, without the last argument."""
    stride, tasks, w = sequence.stride, sequence.tasks, e.writer
    later = f"mt_min_idx(task + {stride}, {_last(tasks)})"
    w.write(f"auto next = [&](auto& use) {{ operands({later}, use); }};")
    given = "const auto& left, const auto& right, int, int, int, int"
    with w.open(f"operands(task, [&]({given})", tail=");"):
        w.write(f"{call}, mt::task_sequence(prefetched, task + {stride} < {tasks}, next));")
