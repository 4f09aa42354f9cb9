"""A task of a product with streamed weights: its rows and vectors, and the epilogue of its sums."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from monotile.analysis.affine import Affine, affine
from monotile.analysis.unconditional import unconditional
from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, axes_of, idx, loads, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_threads import inside, placed, region, spread
from monotile.kernels.gemv.method import GemvColumns, Streamed
from monotile.kernels.gemv.problem import Problem, stored


@dataclass(frozen=True, slots=True)
class TaskRows:
    """The rows of the matrix that a task has, or its columns where the sum goes across rows. ranges: of the dims over these rows. point:
    the axes, in terms of the ranges' variables."""

    method: Streamed
    found: Problem
    ranges: tuple[Range, ...]
    point: Mapping[str, Expr]

    @property
    def count(self) -> int:
        """Rows of a whole tile."""
        return region(self.ranges)

    @property
    def slots(self) -> int:
        """Slots of a task."""
        if isinstance(self.method, GemvColumns):
            return self.found.along.extent // self.method.rows
        return -(-self.count // self.method.slot_rows) * self.method.row_slots


def task_rows(site: Site, method: Streamed) -> tuple[TaskRows, tuple[Range, ...]]:
    """The rows and the vectors of the step."""
    assert isinstance(site.anchor, Compute)
    found = stored(site.anchor, method.second)
    assert found is not None
    vectors = tuple(r for r in site.ranges if found.walks_vectors(r.dim))
    others = tuple(r for r in site.ranges if r not in vectors)
    return TaskRows(method, found, others, site.point), vectors


def row_of_slot(e: BlockEmitter, rows: TaskRows, line: str) -> dict[str, Expr]:
    """The step's axes at row `line` of the supplier's slot, clamped to the task's last row."""
    assert not isinstance(rows.method, GemvColumns)
    w, each, shared = e.writer, rows.method.slot_rows, rows.method.row_slots
    first = f"slot / {shared} * {each}" if shared > 1 else f"slot * {each}"
    w.write(
        f"const idx row = mt_min_idx({first}{f' + {line}' if each > 1 else ''}, {rows.count - 1});"
    )
    w.define("row")
    return placed(rows.point, in_task(e, rows, "row"))


def in_task(e: BlockEmitter, rows: TaskRows, variable: str, width: int = 1) -> dict[str, Expr]:
    """The ranges' variables at position `variable` of a whole tile, clamped to the task's last ones. width: of a vector from there on."""
    w, where = e.writer, spread(Axis(variable, rows.count), rows.ranges)
    *_, last = (None, *(r for r in rows.ranges if r.variable.extent > 1))
    for r in rows.ranges:
        if r.count != str(r.variable.extent):
            name, inner = w.fresh("d"), bare(e.index(where[r.variable.name]))
            less = width if r is last else 1
            w.write(f"const idx {name} = mt_min_idx({inner}, {r.count} - {less});")
            w.define(name)
            where[r.variable.name] = Axis(name, r.variable.extent)
    return where


def outputs(rows: TaskRows, vectors: tuple[Range, ...]) -> tuple[dict[str, Expr], dict[str, Expr]]:
    """For output n of a task, where the vectors of a row are adjacent: its row and vector, and the ranges' variables."""
    many = region(vectors)
    at = unflatten(Axis("n", rows.count * many), [Axis("row", rows.count), Axis("m", many)])
    return at, spread(at["row"], rows.ranges) | spread(at["m"], vectors)


def step_in_memory(
    e: BlockEmitter, rows: TaskRows, point: Mapping[str, Expr], variable: Axis
) -> int | None:
    """Elements of the matrix from one value of `variable` to the next, where that is constant. Terms of its index that are looked up, as
    which expert's, and do not depend on the variable, are the same for all. point: the step's axes."""
    matrix, index = rows.found.matrix, list[Expr]()
    for i in matrix.index:
        whole = affine(substitute(i, dict(point)))
        same = [t for t in whole.terms if loads(t[0]) and variable not in axes_of(t[0])]
        index.append((whole + Affine(tuple(same)).scale(-1)).expr)
    steps = e.steps(Load(matrix.tensor, tuple(index)), {}, [variable])
    return None if steps is None else steps[0]


def alone(rows: TaskRows) -> dict[str, Expr]:
    """The ranges' variables of which the task has one position."""
    return {r.variable.name: idx(0) for r in rows.ranges if r.variable.extent == 1}


def vector_at(rows: TaskRows, vectors: Sequence[Range], m: Expr) -> dict[str, Expr]:
    """The ranges' variables at vector `m`. It depends on no axis of the rows but those of which the task has one position."""
    return alone(rows) | spread(m, vectors)


def write_early(
    e: BlockEmitter, site: Site, rows: TaskRows, vectors: tuple[Range, ...]
) -> dict[Load, str]:
    """Prefetches the epilogue's other operands, such as a residual, together with the vectors, if a thread has one output. Returns their
    variables."""
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
    _, where = outputs(rows, vectors)
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


def write_finish(
    e: BlockEmitter,
    site: Site,
    rows: TaskRows,
    vectors: tuple[Range, ...],
    early: Mapping[Load, str],
) -> None:
    """Writes the epilogue, with the outputs distributed over all threads. early: prefetched operands."""
    w, many, parts = e.writer, region(vectors), rows.method.parts
    total, threads = rows.count * many, e.plan.launch.threads
    at, where = outputs(rows, vectors)
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
