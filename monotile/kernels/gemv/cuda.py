"""A product whose weights stream through the worker's ring.

The supplier fills the ring with whole rows, as many as a slot holds; teams of warps take slots in turns. A thread holds its columns
of the vectors in registers.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from monotile.analysis.unconditional import unconditional
from monotile.codegen.block import READY, BlockEmitter
from monotile.codegen.ring import ring_type
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import lane_of
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, add, idx, loads, mul, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_threads import inside, placed, region, spread
from monotile.kernels.gemv.cuts import VECTOR, at_once, held
from monotile.kernels.gemv.method import Gemv
from monotile.kernels.gemv.problem import Problem, stored

ELEMENTS = {DType.F16: "mt::f16", DType.BF16: "mt::bf16", DType.F32: "float"}


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a matrix that a task takes. ranges: of the dims that walk them. point: the axes, by these."""

    method: Gemv
    found: Problem
    ranges: tuple[Range, ...]
    point: Mapping[str, Expr]

    @property
    def count(self) -> int:
        """Rows of a whole tile."""
        return region(self.ranges)

    @property
    def columns(self) -> int:
        """That a warp takes of a row."""
        return self.found.along.extent // self.method.parts


def write(e: BlockEmitter, site: Site) -> None:
    """The step."""
    ring, w, method = e.plan.launch.ring, e.writer, site.step.method
    assert isinstance(method, Gemv)
    assert isinstance(site.anchor, Compute)
    assert ring is not None
    rows, vectors = _own(site, method)
    w.write(f"{ring_type(ring, e.target)} ring(scratch + {ring.offset});")
    w.write("const idx ring_lane = threadIdx.x % 32, warp = threadIdx.x / 32;")
    w.define("ring_lane")
    w.write(f"const idx part = warp % {method.parts}, group = warp / {method.parts};")
    w.define("part")
    if e.await_ != READY:
        w.write(f"{e.await_}();")
    _write_vectors(e, site, rows, vectors)
    early = _write_early(e, site, rows, vectors)
    w.write(f"float* const sums = (float*)(scratch + {site.step.scratch});")
    if e.view.stage.handoff == "none":  # else there was a barrier since the scratch was used last
        w.write("mt::block_barrier();")
    _write_chunks(e, rows, region(vectors))
    w.write("mt::block_barrier();")
    _finish(e, site, rows, vectors, early)


def _own(site: Site, method: Gemv) -> tuple[_Rows, tuple[Range, ...]]:
    """The rows and the vectors of the step."""
    assert isinstance(site.anchor, Compute)
    found = stored(site.anchor, method.second)
    assert found is not None
    vectors = tuple(r for r in site.ranges if found.walks_vectors(r.dim))
    others = tuple(r for r in site.ranges if r not in vectors)
    return _Rows(method, found, others, site.point), vectors


def _write_vectors(e: BlockEmitter, site: Site, rows: _Rows, vectors: tuple[Range, ...]) -> None:
    """The thread's elements of the vectors, in registers."""
    w, size = e.writer, rows.found.matrix.dtype.itemsize
    count, width = held(rows.columns, size, e.target), VECTOR // size
    many, turns = region(vectors), count // width
    w.write(f"float vectors[{many}][{count}];")
    with ExitStack() as stack:
        head = f"for (idx m = 0; m < {many}; ++m)"
        stack.enter_context(w.open(head, ["m"], fence=True)).pragma = "#pragma unroll"
        head = f"for (idx j = 0; j < {turns}; ++j)"
        stack.enter_context(w.open(head, ["j"], fence=True)).pragma = "#pragma unroll"
        first = add(mul(Axis("j", turns), idx(32)), Axis("ring_lane", 32))
        begin = mul(first, idx(width))
        if rows.columns % (32 * width):
            w.write("#pragma unroll")
            w.write(f"for (idx v = 0; v < {width}; ++v) vectors[m][j * {width} + v] = 0;")
            text = bare(e.index(begin))
            stack.enter_context(w.open(f"if ({text} < {rows.columns})", fence=True))
        own = mul(Axis("part", rows.method.parts), idx(rows.columns))
        column = add(add(own, begin), lane_of(width))
        where = spread(Axis("m", many), vectors)
        at = placed(site.point, where) | where | {rows.found.along.name: column}
        stack.enter_context(e.vector(width))
        text = bare(e.body(rows.found.vectors, at))
        w.write(f"vectors[m][j * {width} + lane] = {text};")


def _write_chunks(e: BlockEmitter, rows: _Rows, many: int) -> None:
    """Every chunk: its rows' sums, to where all warps leave theirs."""
    method, w = rows.method, e.writer
    kind = ELEMENTS[rows.found.matrix.dtype]
    count = held(rows.columns, rows.found.matrix.dtype.itemsize, e.target)
    sums = method.parts * many
    shape = f"{kind}, {method.rows}, {many}, {rows.columns}, {count}, {method.parts}"
    first = f"sums + group * {method.rows * sums} + part * {many}"
    step = at_once(method, e.target) * sums
    part_bytes, team = method.chunk_bytes // method.rows, method.team
    inside = f"warp % {team} * {part_bytes}"
    if method.row_slots == 1:
        groups = team // method.parts
        inside = f"group % {groups} * {method.rows * rows.found.row_bytes} + part * {part_bytes}"
    call = f"mt::gemv_chunks<{shape}, {_slots(rows)}, {method.turns}>"
    w.write(f"{call}(ring, warp / {team}, {inside}, vectors, {first}, {step});")


def _slots(rows: _Rows) -> int:
    """Of a task."""
    return -(-rows.count // rows.method.slot_rows) * rows.method.row_slots


def write_supply(e: BlockEmitter, site: Site) -> None:
    """The step as the supplier has it: it asks for the task's rows, each lane for one, or for parts of them, one a slot. Rows that the last slot
    lacks are the last one again."""
    w, method = e.writer, site.step.method
    assert isinstance(method, Gemv)
    rows, _ = _own(site, method)
    each, shared = method.slot_rows, method.row_slots
    with w.open(
        f"for (idx slot = 0; slot < {_slots(rows)}; ++slot)", ["slot"], fence=True
    ) as block:
        block.pragma = "#pragma unroll 1"
        w.write("ring.await();")
        own = f" + mt_min_idx(threadIdx.x % 32, {each - 1})" if each > 1 else ""
        first = f"slot / {shared}" if shared > 1 else f"slot * {each}"
        w.write(f"const idx row = mt_min_idx({first}{own}, {rows.count - 1});")
        w.define("row")
        where = spread(Axis("row", rows.count), rows.ranges)
        for r in rows.ranges:
            if r.count != str(r.variable.extent):
                name, inner = w.fresh("d"), bare(e.index(where[r.variable.name]))
                w.write(f"const idx {name} = mt_min_idx({inner}, {r.count} - 1);")
                w.define(name)
                where[r.variable.name] = Axis(name, r.variable.extent)
        column: Expr = idx(0)
        if shared > 1:
            w.write(f"const idx piece = slot % {shared};")
            w.define("piece")
            column = mul(Axis("piece", shared), idx(rows.columns * method.team))
        at = placed(rows.point, where) | {rows.found.along.name: column}
        address = e.address_of(rows.found.matrix, at)
        w.write(f"ring.ask<{each}>({address}, {rows.found.row_bytes // shared});")


def _outputs(rows: _Rows, vectors: tuple[Range, ...]) -> tuple[dict[str, Expr], dict[str, Expr]]:
    """Of output n of a task, the vectors of a row after each other: its row and vector, and the ranges' variables."""
    many = region(vectors)
    at = unflatten(Axis("n", rows.count * many), [Axis("row", rows.count), Axis("m", many)])
    return at, spread(at["row"], rows.ranges) | spread(at["m"], vectors)


def _write_early(
    e: BlockEmitter, site: Site, rows: _Rows, vectors: tuple[Range, ...]
) -> dict[Load, str]:
    """What follows the sums reads other tensors too, a residual say: where a thread has one output, it asks for them beside the vectors.
    Gives the variables that have them."""
    w, total = e.writer, rows.count * region(vectors)
    later = [s for s in site.followers if isinstance(s, Compute)]
    wanted = [
        x
        for s in later
        for x in dict.fromkeys(unconditional(s.body))
        if x.tensor.name not in site.step.computes and not any(loads(i) for i in x.index)
    ]
    if not wanted or total > e.plan.launch.threads:
        return {}
    _, where = _outputs(rows, vectors)
    point = placed(site.point, where)
    found = {substitute(x, point): w.fresh("early") for x in wanted}
    for x, name in found.items():
        w.write(f"{e.values[x.dtype]} {name}{{}};")
    with ExitStack() as stack:
        head = f"if (const idx n = threadIdx.x; n < {total})"
        stack.enter_context(w.open(head, ["n"], fence=True))
        stack.enter_context(inside(e, site.ranges, where))
        for x, name in found.items():
            w.write(f"{name} = {bare(e.value(x))};")
    return {x: name for x, name in found.items() if isinstance(x, Load)}


def _finish(
    e: BlockEmitter,
    site: Site,
    rows: _Rows,
    vectors: tuple[Range, ...],
    early: Mapping[Load, str],
) -> None:
    """Every thread finishes outputs. early: what it has of other tensors already."""
    w, many, parts = e.writer, region(vectors), rows.method.parts
    total, threads = rows.count * many, e.plan.launch.threads
    at, where = _outputs(rows, vectors)
    head = f"for (idx n = threadIdx.x; n < {total}; n += {threads})"
    with ExitStack() as stack:
        block = stack.enter_context(w.open(head, ["n"], fence=True))
        block.pragma = "#pragma unroll 1"
        for x, name in early.items():
            block.names[x] = name
        stack.enter_context(inside(e, site.ranges, where))
        row, m = bare(e.index(at["row"])), bare(e.index(at["m"]))
        text = f"mt::gemv_total<{parts}, {many}>(sums + ({row}) * {parts * many} + {m})"
        e.finish(site, placed(site.point, where), text, DType.F32)
