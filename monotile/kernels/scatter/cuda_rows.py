"""Lists of the terms of each row (CSR) in memory; a block builds those of its own rows."""

from monotile.analysis.row_lists import lists_of
from monotile.codegen.address import stored
from monotile.codegen.site import Site
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.errors import InternalError
from monotile.ir.expr import Axis, Expr, add, idx, mul
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_threads import placed
from monotile.kernels.scatter.cuda_lists import write_position
from monotile.kernels.scatter.method import ListRows


def write_rows(e: VectorEmitter, site: Site, method: ListRows) -> None:
    """Writes functors for the row of a term and for the stores, and the call of `mt::RowLists`."""
    w, step, m, threads = e.writer, site.step, method, e.plan.launch.threads
    made = {s.out.name: s for s in site.named(step.computes)}
    found = lists_of(made[step.computes[step.anchor]], made)
    if found is None:
        raise InternalError(f"step {step.computes} is no list of the terms of rows")
    low = mul(e.view.task[method.axis], idx(m.rows))
    lists, name = f"mt::RowLists<{threads}, {m.rows}, {m.capacity}, {m.loads}>", w.fresh("row")
    with w.open("", fence=True):
        w.write(
            f'static_assert({lists}::BYTES <= {step.scratch_bytes}, "The Plan gives lists too little shared memory.");'
        )
        index = [(found.row(Axis("e", found.terms)), found.rows)]
        functors = write_position(e, index, found.first.out, f"position_{name}")
        begin, put = f"begin_{name}", f"put_{name}"
        with w.open(f"auto {begin} = [&](idx row, idx at)", ["row", "at"], fence=True, tail=";"):
            _begin(e, found.first, add(low, Axis("row", m.rows)), "at")
        with w.open(f"auto {put} = [&](idx at, idx term)", ["at", "term"], fence=True, tail=";"):
            where: dict[str, Expr] = {site.ranges[0].variable.name: Axis("at", found.terms)}
            e.finish(site, placed(site.point, where), "(int64_t)term", found.order.out.dtype)
        first, count = bare(e.index(low)), str(m.rows)
        if found.rows % m.rows:
            count = f"mt_min_idx({m.rows}, {found.rows} - {first})"
        given = f"idx({first}), {count}, {found.terms}, {functors}, {begin}, {put}"
        w.write(f"{lists}::run(scratch + {step.scratch}, {given});")
        with w.open(f"if (threadIdx.x == 0 && {first} + {m.rows} >= {found.rows})", fence=True):
            _begin(e, found.first, idx(found.rows), str(found.terms))


def _begin(e: VectorEmitter, s: Compute, at: Expr, text: str) -> None:
    """Stores the start of a row's list."""
    for place in stored(e.plan.places[s.out.name]):
        e.writer.write(e.store(s.out.dtype, *e.address(s.out, [at], place), f"(int64_t)({text})"))
