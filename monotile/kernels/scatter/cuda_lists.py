"""Scatter-adds by lists of the terms of each position, in order; a block builds the lists of its own positions."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from monotile.codegen.address import stored
from monotile.codegen.base import VALUES
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare, combine, convert
from monotile.codegen.vector import VectorEmitter
from monotile.errors import InternalError
from monotile.ir.expr import Axis, Expr, Tensor, add, idx, mul, substitute
from monotile.ir.program import Scatter
from monotile.kernels.common.cuda_threads import placed, region, spread
from monotile.kernels.scatter.cuda_prefetch import (
    place_names,
    turns,
    unchecked,
    write_fetch,
    write_places,
)
from monotile.kernels.scatter.method import Listed
from monotile.kernels.scatter.roles import Roles, roles_of


@dataclass(frozen=True, slots=True)
class _Rows:
    """A task's rows. low: its first position. features: their ranges, `total` elements in all."""

    site: Site
    s: Scatter
    roles: Roles
    method: Listed
    low: Expr
    features: Sequence[Range]

    @property
    def total(self) -> int:
        return region(self.features)

    @property
    def sure(self) -> int:
        """Of a lane's `each` features per iteration, how many exist in the last iteration as well, for all lanes."""
        lanes, each = self.method.lanes, self.method.each
        return min(each, (self.total - (self.total - 1) // (lanes * each) * lanes * each) // lanes)

    @property
    def positions(self) -> list[tuple[Expr, int]]:
        """The index of term `e` along each scattered dimension, with its extent."""
        s, point = self.s, self.term(Axis("e", self.roles.count(self.s)))
        return [(substitute(s.index[d], point), s.out.shape[d]) for d in self.roles.scattered]

    def term(self, number: Expr) -> dict[str, Expr]:
        """The site's point at term `number` of the sums."""
        axes = [self.s.axes[p] for p in self.roles.terms]
        return {**self.site.point, **unflatten(number, axes)}

    def index(self, row: Expr, feature: Mapping[str, Expr]) -> list[Expr]:
        """The index into the result of a feature of a row."""
        s, scattered = self.s, self.roles.scattered
        along = [Axis(f"p{d}", s.out.shape[d]) for d in scattered]
        where = unflatten(add(self.low, row), along)
        point = placed(self.site.point, feature)
        return [
            where[f"p{d}"] if d in scattered else substitute(i, point)
            for d, i in enumerate(s.index)
        ]


def write_listed(e: VectorEmitter, site: Site, method: Listed) -> None:
    """Writes functors for the position of a term and for the sum of a row's terms, and the call of `mt::TermLists`."""
    s, w, step = site.anchor, e.writer, site.step
    roles = roles_of(s) if isinstance(s, Scatter) else None
    if not isinstance(s, Scatter) or roles is None:
        raise InternalError(f"step {step.computes} has no lists of terms")
    ones: dict[str, Expr] = {site.ranges[p].variable.name: idx(0) for p in roles.outer}
    site = replace(site, point=placed(site.point, ones))
    low = mul(e.view.task[method.axis], idx(method.rows))
    rows = _Rows(site, s, roles, method, low, [site.ranges[p] for p in roles.features])
    m, threads = method, e.plan.launch.threads
    lists = f"mt::TermLists<{threads}, {m.rows}, {m.capacity}, {m.loads}, {m.lanes}>"
    name, positions = w.fresh("row"), roles.positions(s)
    with w.open("", fence=True):
        w.write(
            f'static_assert({lists}::BYTES <= {step.scratch_bytes}, "The Plan gives lists too little shared memory.");'
        )
        functors = write_position(e, rows.positions, s.out, f"position_{name}")
        _write_add(e, rows, f"add_{name}")
        first = bare(e.index(low))
        count = str(m.rows)
        if positions % m.rows:
            count = f"mt_min_idx({m.rows}, {positions} - {first})"
        given = f"idx({first}), {count}, {roles.count(s)}, {functors}, add_{name}"
        w.write(f"{lists}::run(scratch + {step.scratch}, {given});")


def write_position(
    e: VectorEmitter, index: Sequence[tuple[Expr, int]], tensor: Tensor, name: str
) -> str:
    """Writes functors for the loads of a term's position, for the position, and for its checks. Returns their names. index: the position of
    term `e`, with extents. tensor: the indexed tensor."""
    w = e.writer
    names = write_fetch(e, [i for i, _ in index], f"fetch_{name}", "read")
    given = "(idx e, const auto& read)"
    with w.open(f"auto {name} = [&]{given} -> idx", ["e", "read"], fence=True, tail=";") as block:
        block.names.update(names)
        w.write("bool right = true;")
        flat: Expr = idx(0)
        for i, extent in index:
            flat = add(mul(flat, idx(extent)), unchecked(e, i, extent, "right &= "))
        w.write(f"return right ? {bare(e.index(flat))} : idx(-1);")
    with w.open(f"auto check_{name} = [&]{given}", ["e", "read"], fence=True, tail=";") as block:
        block.names.update(names)
        for i, extent in index:
            e.position(i, extent, tensor)
    return f"fetch_{name}, {name}, check_{name}"


def _write_add(e: VectorEmitter, rows: _Rows, name: str) -> None:
    """Writes the functor that sums a row's terms. Neighbouring lanes have neighbouring features; sums stay in registers, and several terms
    are loaded at once."""
    s, m, w = rows.s, rows.method, e.writer
    kind, dtype = VALUES[s.out.dtype], s.out.dtype
    value = _value(rows)
    names = write_fetch(e, [value], f"fetch_{name}", "read[u]")
    given = ("row", "terms", "first", "last")
    head = f"auto {name} = [&](idx row, const int* terms, int first, int last)"
    with w.open(head, given, fence=True, tail=";"):
        lane = f"int(threadIdx.x) % {m.lanes}"
        head = f"for (idx f = {lane}; f < {rows.total}; f += {m.lanes * m.each})"
        with w.open(head, ["f"], fence=True):
            w.write(f"{kind} sum[{m.each}];")
            if s.combiner is not None:
                _write_start(e, rows)
            start = "first" if s.combiner is not None else "last - 1"  # the last one wins
            head = f"for (int k = {start}; k < last; k += {m.terms})"
            with w.open(head, ["k"], fence=True):
                w.write(f"{kind} value[{m.terms}][{m.each}];")
                w.write(f"idx number[{m.terms}];")
                w.write(f"decltype(fetch_{name}(0)) read[{m.terms}]{{}};")
                with turns(e, "u", m.terms):
                    w.write("number[u] = terms[mt::min_of(k + u, last - 1)];")
                    w.write(f"read[u] = fetch_{name}(number[u]);")
                places = write_places(e, value, names, m.terms)
                with turns(e, "u", m.terms, fence=True) as block:
                    block.names.update(names)
                    w.write("const idx e = number[u];")
                    w.define("e")
                    place_names(e, places)
                    with _features(e, rows):
                        w.write(f"value[u][v] = {bare(e.root(value))};")
                with turns(e, "u", m.terms, fence=True), turns(e, "v", m.each):
                    text = "value[u][v]"
                    if s.combiner is not None:
                        text = combine(s.combiner, "sum[v]", text, dtype)
                        if dtype.is_float:
                            text = convert(text, dtype.compute, dtype)
                    guard = "if (k + u < last) " if m.terms > 1 else ""
                    w.write(f"{guard}sum[v] = {bare(text)};")
            with _features(e, rows) as feature:
                guard = f"if (v < {rows.sure} || f + v * {m.lanes} < {rows.total}) "
                guard = "" if rows.sure == m.each else guard
                for place in stored(e.plan.places[s.out.name]):
                    at = e.address(s.out, rows.index(Axis("row", m.rows), feature), place)
                    w.write(guard + e.store(s.out.dtype, *at, "sum[v]"))


def _value(rows: _Rows) -> Expr:
    """The written value, for feature `at` of term `e`."""
    feature = spread(Axis("at", rows.total), rows.features)
    point = placed(rows.term(Axis("e", rows.roles.count(rows.s))), feature)
    return substitute(rows.s.value, point)


def _write_start(e: VectorEmitter, rows: _Rows) -> None:
    """Loads the initial values of the sums."""
    out = rows.s.out
    place = stored(e.plan.places[out.name])[0]
    with _features(e, rows) as feature:
        at = e.address(out, rows.index(Axis("row", rows.method.rows), feature), place)
        e.writer.write(f"sum[v] = {bare(e.load(out, *at))};")


@contextmanager
def _features(e: VectorEmitter, rows: _Rows) -> Generator[dict[str, Expr]]:
    """An unrolled loop over the features `v` of a lane. Yields the ranges' variables, clamped to features that exist."""
    with turns(e, "v", rows.method.each):
        text = f"f + v * {rows.method.lanes}"
        if rows.sure < rows.method.each:
            text = f"v < {rows.sure} ? {text} : mt_min_idx({text}, {rows.total - 1})"
        e.writer.write(f"const idx at = {text};")
        e.writer.define("at")
        yield spread(Axis("at", rows.total), rows.features)
