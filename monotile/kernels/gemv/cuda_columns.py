"""Sums across the rows of a matrix, of which a task's columns come through the ring: threads multiply their elements of each row with the
vectors on chip."""

from monotile.analysis.contraction import uncast
from monotile.analysis.streaming import VECTOR
from monotile.codegen.address import readable
from monotile.codegen.block import BlockEmitter
from monotile.codegen.packs import lane_of
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.ir.expr import Axis, Load, add, idx, mul
from monotile.kernels.common.cuda_threads import placed, region
from monotile.kernels.gemv.columns import in_bulk, layout, of_task, vector_type
from monotile.kernels.gemv.cuda_dots import ELEMENTS
from monotile.kernels.gemv.cuda_tasks import TaskRows, in_task, step_in_memory, vector_at
from monotile.kernels.gemv.method import GemvColumns
from monotile.plan.places import ON_CHIP

WIDTHS = (4, 2, 1)  # elements of a vector that a thread copies at once


def write_columns(e: BlockEmitter, site: Site, rows: TaskRows, vectors: tuple[Range, ...]) -> None:
    """Copies the vectors on chip, and leaves the sums of the task's columns in `sums`."""
    method, found, w = rows.method, rows.found, e.writer
    assert isinstance(method, GemvColumns)
    many, columns = region(vectors), of_task(found, method)
    at = layout(found, method, many)
    for name, byte in (("parts", at.parts), ("sums", at.sums)):
        w.write(f"float* const {name} = (float*)(scratch + {site.step.scratch + byte});")
    there = _on_chip(e, site, rows, vectors)
    if there is None:
        there = "vectors", found.along.extent
        _write_vectors(e, site, rows, vectors)
        w.write("mt::block_barrier();")
    given, pitch = there
    kind = ELEMENTS[found.matrix.dtype]
    shape = f"{kind}, {method.packs}, {method.lanes}, {method.rows}, {many}, {rows.slots}, {pitch}"
    w.write(f"mt::gemv_columns<{shape}>(ring, {given}, parts);")
    w.write("mt::block_barrier();")
    threads = e.plan.launch.threads
    w.write(f"mt::gemv_column_totals<{threads}, {method.lanes}, {columns}, {many}>(parts, sums);")


def _on_chip(
    e: BlockEmitter, site: Site, rows: TaskRows, vectors: tuple[Range, ...]
) -> tuple[str, int] | None:
    """The pointer to the vectors, and the elements between two of them, if the worker has them on chip already; else None."""
    value, along, m = uncast(rows.found.vectors), rows.found.along, Axis("m", region(vectors))
    if not isinstance(value, Load) or value.dtype not in ELEMENTS or e.computed(value.tensor):
        return None
    if not isinstance(readable(e.plan.places[value.tensor.name], own=False), ON_CHIP):
        return None
    where = vector_at(rows, vectors, m)
    point = placed(site.point, where) | where
    steps = e.steps(value, point, (m, along))
    if steps is None or steps[1] != 1:
        return None
    first = placed(point, {m.name: idx(0)}) | {along.name: idx(0)}
    return f"(const {ELEMENTS[value.dtype]}*)({e.address_of(value, first)})", steps[0]


def _write_vectors(e: BlockEmitter, site: Site, rows: TaskRows, vectors: tuple[Range, ...]) -> None:
    """Copies all vectors on chip, one after the other."""
    w, along, many = e.writer, rows.found.along, region(vectors)
    kind = ELEMENTS[vector_type(rows.found)]
    w.write(f"{kind}* const vectors = ({kind}*)(scratch + {site.step.scratch});")
    width = next(x for x in WIDTHS if along.extent % x == 0)
    chunks = along.extent // width
    head = f"for (idx n = threadIdx.x; n < {many * chunks}; n += {e.plan.launch.threads})"
    with w.open(head, ["n"], fence=True):
        at = unflatten(Axis("n", many * chunks), [Axis("m", many), Axis("chunk", chunks)])
        begin = mul(at["chunk"], idx(width))
        where = vector_at(rows, vectors, at["m"])
        point = placed(site.point, where) | where | {along.name: add(begin, lane_of(width))}
        with e.vector(width):
            value = bare(e.body(rows.found.vectors, point))
            w.write(f"vectors[n * {width} + lane] = mt::cast<{kind}>({value});")


def write_rows(e: BlockEmitter, rows: TaskRows) -> None:
    """For the supplier: copies a slot's rows of the task's columns. Vectors that the last task lacks are its last vector again."""
    method, found, w = rows.method, rows.found, e.writer
    assert isinstance(method, GemvColumns)
    size, bulk = found.matrix.dtype.itemsize, in_bulk(method, e.target)
    packs, count = (1, 1) if bulk else (method.packs, VECTOR // size)
    w.write(f"const idx line = threadIdx.x % 32 / {packs};")
    w.write(f"const idx column = threadIdx.x % 32 % {packs} * {count};")
    for name in ("line", "column"):
        w.define(name)
    line, first = Axis("line", method.rows), mul(Axis("slot", rows.slots), idx(method.rows))
    point = placed(rows.point, in_task(e, rows, "column", count))
    point |= {found.along.name: add(first, line)}
    address = e.address_of(found.matrix, point)
    step = step_in_memory(e, rows, point, line)
    assert step is not None
    if bulk:
        (own,) = [r for r in rows.ranges if r.variable.extent > 1]
        w.write(f"ring.ask<{method.rows}>({address}, ({own.count}) * {size}, {method.row_bytes});")
    else:
        w.write(f"ring.gather<{method.rows}, {packs}>({address}, {step * size});")
