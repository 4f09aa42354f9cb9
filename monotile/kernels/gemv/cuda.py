"""A product whose weights stream through the worker's ring.

Each warp asks for chunks of its own rows, and in time for those of the steps after this one; the hand-off is waited for
when the ring is full. A thread holds its columns of the vectors in registers.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from monotile.analysis.unconditional import unconditional
from monotile.codegen.block import READY, BlockEmitter
from monotile.codegen.site import Range, Site, point_of, range_of, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import lane_of
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, add, idx, loads, mul, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_threads import inside, placed, region, spread
from monotile.kernels.gemv.cuts import VECTOR, at_once, held
from monotile.kernels.gemv.method import Gemv
from monotile.kernels.gemv.problem import Problem, stored
from monotile.plan.nodes import Ring
from monotile.plan.streams import Ahead, Fork, Streaming, stream_order

ELEMENTS = {DType.F16: "mt::f16", DType.BF16: "mt::bf16", DType.F32: "float"}


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a matrix that a task takes, of a step of any stage. ranges: of the dims that walk them. point: the axes, by these."""

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
    """The step, with what it asks for on behalf of those after it."""
    ring, w, method = e.plan.launch.ring, e.writer, site.step.method
    assert isinstance(method, Gemv)
    assert isinstance(site.anchor, Compute)
    assert ring is not None
    rows, vectors = _own(site, method)
    w.write(f"{ring_type(e, ring)} ring(scratch + {ring.offset});")
    w.write("const idx ring_lane = threadIdx.x % 32, warp = threadIdx.x / 32;")
    w.define("ring_lane")
    w.define("warp")
    w.write(f"const idx part = warp % {method.parts}, group = warp / {method.parts};")
    w.define("part")
    w.define("group")
    _write_ask(e, rows, stream_order(e.plan.body)[site.step.computes[0]])
    w.write(f"for (int q = ring.asked; q < {ring.slots}; ++q) ask(q);")
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


def ring_type(e: BlockEmitter, ring: Ring) -> str:
    """The device's type of the Plan's ring."""
    warps = e.plan.launch.threads // e.target.warp
    return f"mt::Ring<{ring.slots}, {ring.slot_bytes}, {warps}>"


def _own(site: Site, method: Gemv) -> tuple[_Rows, tuple[Range, ...]]:
    """The rows and the vectors of the step."""
    assert isinstance(site.anchor, Compute)
    found = stored(site.anchor, method.second)
    assert found is not None
    vectors = tuple(r for r in site.ranges if found.walks_vectors(r.dim))
    others = tuple(r for r in site.ranges if r not in vectors)
    return _Rows(method, found, others, site.point), vectors


def _write_ask(e: BlockEmitter, rows: _Rows, ahead: Ahead) -> None:
    """What asks for chunk `q` from the step's first on: one of its own, or of a step after it."""
    w = e.writer
    with w.open("const auto ask = [&](int q)", ["q"], fence=True, tail=";"):
        count = _chunks(e, rows, "group")
        with w.open(f"if (q < {count})", fence=True):
            _write_request(e, rows, ("part", "group"))
            w.write("return;")
        if ahead:
            w.write(f"q -= {count};")
            _write_ahead(e, ahead, 0)


def _write_ahead(e: BlockEmitter, ahead: Ahead, number: int) -> None:
    """The same for what comes after the step, `number` of which are written."""
    w = e.writer
    for node in ahead:
        if isinstance(node, Fork):
            variable = e.loop_axes[node.axis]
            text = bare(e.index(add(variable, idx(1))))
            with w.open(f"if ({text} < {node.extent})", fence=True):
                _write_ahead(e, node.again, number)
            with w.open("else", fence=True):
                _write_ahead(e, node.last, number)
            return
        _write_later(e, node, number)
        number += 1


def _write_later(e: BlockEmitter, later: Streaming, number: int) -> None:
    """Asks for a chunk of a later step, of the task that this worker will have there, if any."""
    w, stage, step = e.writer, later.stage, later.step
    anchor, method = e.computes[step.computes[step.anchor]], step.method
    assert isinstance(method, Gemv)
    assert isinstance(anchor, Compute)
    found = stored(anchor, method.second)
    assert found is not None
    own, tasks = f"task{number}", math.prod(stage.grid)
    coordinates = tuple(Axis(f"c{number}_{k}", n) for k, n in enumerate(stage.grid))
    with w.open("", [own, *(c.name for c in coordinates)], fence=True):
        w.write(f"const idx {own} = {e.first_task(stage)};")
        parts = unflatten(Axis(own, tasks), coordinates)
        for c in coordinates:
            w.write(f"const idx {c.name} = {bare(e.index(parts[c.name]))};")
        dims = (d for d in step.dims if not found.walks_vectors(d))
        each = tuple(
            range_of(d, coordinates, f"d{number}_{k}", lambda rest: bare(e.total(rest)))
            for k, d in enumerate(dims)
        )
        loops = dict[str, Expr](e.loop_axes) | {
            axis: idx(0) if where == "first" else add(e.loop_axes[axis], idx(1))
            for axis, where in later.shift.items()
        }
        rows = _Rows(method, found, each, point_of(anchor, each, loops))
        group = f"group{number}"
        w.write(f"const idx part{number} = warp % {method.parts}, {group} = warp / {method.parts};")
        w.define(f"part{number}")
        w.define(group)
        here = f"{own} < {tasks} ? {_chunks(e, rows, group)} : 0"
        w.write(f"const int count = {here if tasks < e.plan.launch.workers else _chunks(e, rows, group)};")  # fmt: skip
        with w.open("if (q < count)", fence=True):
            _write_request(e, rows, (f"part{number}", group))
            w.write("return;")
        w.write("q -= count;")


def _chunks(e: BlockEmitter, rows: _Rows, group: str) -> str:
    """Text of how many chunks a warp takes of a task's rows."""
    each, step = rows.method.rows, at_once(rows.method, e.target)
    if rows.count % step == 0:
        return str(rows.count // step)
    return f"int({rows.count + step - 1} - {group} * {each}) / {step}"


def _write_request(e: BlockEmitter, rows: _Rows, warp: tuple[str, str]) -> None:
    """Asks for chunk `q` of a task's rows; each lane for a row. Rows that the last task lacks are its last one again."""
    w, method, (part, group) = e.writer, rows.method, warp
    own = f"mt_min_idx(ring_lane, {method.rows - 1})" if method.rows > 1 else "0"
    row = w.fresh("row")
    text = f"(q * {at_once(method, e.target) // method.rows} + {group}) * {method.rows} + {own}"
    w.write(f"const idx {row} = mt_min_idx({text}, {rows.count - 1});")
    w.define(row)
    where = spread(Axis(row, rows.count), rows.ranges)
    for r in rows.ranges:
        if r.count != str(r.variable.extent):
            name, inner = w.fresh("d"), bare(e.index(where[r.variable.name]))
            w.write(f"const idx {name} = mt_min_idx({inner}, {r.count} - 1);")
            w.define(name)
            where[r.variable.name] = Axis(name, r.variable.extent)
    column = mul(Axis(part, method.parts), idx(rows.columns))
    at = placed(rows.point, where) | {rows.found.along.name: column}
    bytes_ = method.chunk_bytes // method.rows
    w.write(f"ring.ask({e.address_of(rows.found.matrix, at)}, {bytes_}, {method.rows});")


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
    chunks = _chunks(e, rows, "group")
    w.write(f"mt::gemv_chunks<{shape}>(ring, {chunks}, vectors, {first}, {step}, ask);")


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
