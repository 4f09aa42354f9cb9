"""Dot products of rows from the ring with vectors in registers."""

from contextlib import ExitStack

from monotile.analysis.streaming import VECTOR
from monotile.codegen.block import BlockEmitter
from monotile.codegen.packs import lane_of
from monotile.codegen.site import Range, Site
from monotile.codegen.spelling import bare
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, add, idx, mul
from monotile.kernels.common.cuda_threads import placed, region
from monotile.kernels.gemv.cuda_tasks import TaskRows, vector_at
from monotile.kernels.gemv.cuts import at_once, held
from monotile.kernels.gemv.method import Gemv

ELEMENTS = {DType.F16: "mt::f16", DType.BF16: "mt::bf16", DType.F32: "float"}


def write_vectors(e: BlockEmitter, site: Site, rows: TaskRows, vectors: tuple[Range, ...]) -> None:
    """Loads the thread's elements of the vectors into registers."""
    assert isinstance(rows.method, Gemv)
    w, size = e.writer, rows.found.matrix.dtype.itemsize
    columns = rows.found.along.extent // rows.method.parts  # that a warp takes of a row
    count, width = held(columns, size, e.target), VECTOR // size
    many, turns = region(vectors), count // width
    w.write(f"float vectors[{many}][{count}];")
    with ExitStack() as stack:
        head = f"for (idx m = 0; m < {many}; ++m)"
        stack.enter_context(w.open(head, ["m"], fence=True)).pragma = "#pragma unroll"
        head = f"for (idx j = 0; j < {turns}; ++j)"
        stack.enter_context(w.open(head, ["j"], fence=True)).pragma = "#pragma unroll"
        first = add(mul(Axis("j", turns), idx(32)), Axis("ring_lane", 32))
        begin = mul(first, idx(width))
        if columns % (32 * width):
            w.write("#pragma unroll")
            w.write(f"for (idx v = 0; v < {width}; ++v) vectors[m][j * {width} + v] = 0;")
            text = bare(e.index(begin))
            stack.enter_context(w.open(f"if ({text} < {columns})", fence=True))
        own = mul(Axis("part", rows.method.parts), idx(columns))
        column = add(add(own, begin), lane_of(width))
        where = vector_at(rows, vectors, Axis("m", many))
        at = placed(site.point, where) | where | {rows.found.along.name: column}
        stack.enter_context(e.vector(width))
        text = bare(e.body(rows.found.vectors, at))
        w.write(f"vectors[m][j * {width} + lane] = {text};")


def write_chunks(e: BlockEmitter, rows: TaskRows, many: int) -> None:
    """Computes the sums of every chunk's rows, and stores them for the combination across warps."""
    method, w = rows.method, e.writer
    assert isinstance(method, Gemv)
    columns = rows.found.along.extent // method.parts
    kind = ELEMENTS[rows.found.matrix.dtype]
    count = held(columns, rows.found.matrix.dtype.itemsize, e.target)
    sums = method.parts * many
    shape = f"{kind}, {method.rows}, {many}, {columns}, {count}, {method.parts}"
    first = f"sums + group * {method.rows * sums} + part * {many}"
    step = at_once(method, e.target) * sums
    part_bytes, team = method.chunk_bytes // method.rows, method.team
    inside = f"warp % {team} * {part_bytes}"
    if method.row_slots == 1:
        groups = team // method.parts
        inside = f"group % {groups} * {method.rows * rows.found.row_bytes} + part * {part_bytes}"
    call = f"mt::gemv_chunks<{shape}, {rows.slots}, {method.turns}>"
    w.write(f"{call}(ring, warp / {team}, {inside}, vectors, {first}, {step});")
