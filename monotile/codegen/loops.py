"""Loops over a step's region, emitted so that a C compiler vectorises the innermost one."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from monotile.analysis.affine import affine
from monotile.codegen.guards import guard_of, steady_of
from monotile.codegen.lines import Lines, block_start
from monotile.codegen.remainders import FEWEST, costly, left, may_repeat, parts
from monotile.codegen.site import Point, Range, Site, Span
from monotile.codegen.spelling import SUFFIX, bare
from monotile.codegen.stages import StageEmitter
from monotile.codegen.view import Views
from monotile.codegen.writer import Block
from monotile.config import Options
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    add,
    idx,
    mul,
    substitute,
)
from monotile.ir.intervals import interval
from monotile.ir.program import Compute, Program, Scatter, value_of
from monotile.plan.access import overwritten
from monotile.plan.nodes import Plan, Stage
from monotile.targets.target import Target

WORTH_CUTTING = 16  # iterations of a loop that is cut at the ends of a condition
CUTS = 2  # how often a loop is cut at the ends of a condition, one inside the other


@dataclass(frozen=True, slots=True)
class Row:
    """An innermost loop: `x` runs from `low` to `high` - 1 (texts); `at` is the position, in terms of x. again: positions may be
    computed twice."""

    x: Axis
    low: str
    high: str
    at: Expr
    again: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """A loop over an axis, from `first` on. count: text of the number of its values."""

    first: Expr
    count: str


class Loops(StageEmitter):
    """Loop nests of one thread. kernels: the register tiles that the stages call, as text, by name. lines: of the current stage."""

    lines: Lines
    in_vectors = True

    def __init__(self, program: Program, plan: Plan, target: Target, options: Options) -> None:
        super().__init__(program, plan, target, options)
        self.kernels: dict[str, str] = {}
        self._views = Views(program, plan.places, plan.body)
        self._lanes = target.vector_bytes // DType.F32.itemsize
        self._in_place = frozenset(overwritten(program))

    def sites(self, stage: Stage, *, bounded: bool = True) -> Iterator[Site]:
        self.lines = Lines(self._views.of(stage))
        yield from super().sites(stage, bounded=bounded)

    def kernel(
        self, template: str, m: int, n: int, dtype: DType, storage: Mapping[str, str]
    ) -> str:
        """The name of the instance of `targets/cpu/device/<template>.h` for an m x n tile; storage: types of the sides."""
        name = "_".join((template, str(m), str(n), SUFFIX[dtype], *storage.values()))
        macros = {"NAME": name, "M": m, "N": n, "C": SUFFIX[dtype], **storage}
        lines = [f"#define MT_{key} {value}" for key, value in macros.items()]
        self.kernels[name] = "\n".join([*lines, f'#include "cpu/device/{template}.h"', ""])
        return name

    def simd(self, block: Block, clauses: str = "") -> None:
        """Marks an innermost loop as vectorisable, unless its body must run in order."""
        if not any("MT_CHECK" in line or line.lstrip().startswith("for") for line in block.lines):
            block.pragma = f"#pragma omp simd{clauses}"

    def counted(self, variable: Axis, count: str) -> tuple[str, list[str]]:
        """Head of the loop in which `variable` runs from 0 to `count` - 1, and the variables that it defines."""
        name = variable.name
        return f"for (idx {name} = 0; {name} < {count}; ++{name})", [name]

    def bounded(self, r: Range, span: Span) -> Range:
        """From the first live position on."""
        low, count = self.writer.fresh("low"), self.writer.fresh("n")
        origin = bare(self.index(r.origin))
        first, end = bare(self.index(span.first)), bare(self.index(span.end))
        self.writer.write(f"const idx {low} = mt_max_idx({origin}, {first});")
        self.writer.define(low)
        self.writer.write(
            f"const idx {count} = mt_max_idx(0, mt_min_idx({origin} + {r.count}, {end}) - {low});"
        )
        self.writer.define(count)
        return replace(r, origin=Axis(low, r.dim.extent), count=count)

    def walked(self, axis: Axis, site: Site) -> Walk:
        """The loop over a reduce axis of the site's anchor."""
        span = site.spans.get(axis.name)
        if span is None:
            return Walk(idx(0), str(axis.extent))
        first, end = bare(self.index(span.first)), bare(self.index(span.end))
        return Walk(span.first, self.short(end if first == "0" else f"{end} - {first}"))

    @contextmanager
    def over(self, ranges: Sequence[Range]) -> Generator[None]:
        """Plain loops over all of `ranges`, the last one innermost."""
        with ExitStack() as stack:
            for r in ranges:
                stack.enter_context(self.writer.open(*self.counted(r.variable, self.count(r))))
            yield

    def count(self, r: Range) -> str:
        return self.short(r.count)

    def short(self, count: str) -> str:
        """`count` as a literal or a variable of the innermost block."""
        if count.isdigit() or count.isidentifier():
            return count
        variable = self.writer.fresh("n")
        self.writer.write(f"const idx {variable} = {count};")
        return variable

    @contextmanager
    def blocks(self, name: str, extent: int, count: str, size: int) -> Generator[tuple[Expr, str]]:
        """A loop that cuts `count` positions (at most `extent`) into blocks of `size`: the beginning of a block, and text of its length.
        No loop where there is only one block."""
        start = block_start(name, extent, size)
        if extent <= size:
            yield start, count
            return
        variable = Axis(name, -(-extent // size))
        even = count.isdigit() and int(count) % size == 0
        times = str(int(count) // size) if even else f"({count} + {size - 1}) / {size}"
        with self.writer.open(*self.counted(variable, times)):
            taken = str(size)
            if not even:
                taken = self.short(f"mt_min_idx({size}, {count} - {name} * {size})")
            yield start, taken

    @contextmanager
    def rows(
        self,
        variable: Axis,
        count: str,
        origin: Expr,
        point: Callable[[Expr], Point],
        uses: Sequence[Expr],
    ) -> Generator[Row]:
        """The innermost loop over `variable`, from 0 to `count` - 1; opens the loop around it, if there is one.

        A flattened dimension is not straight: its addresses contain quotients and remainders of the position. Where these change only
        every so many positions, counted from `origin` on, the loop is cut there.
        """
        row = self.lines.row(variable, origin, point, uses)
        if row is None:
            yield Row(variable, "0", count, variable)
            return
        name, x = f"{variable.name}o", Axis(variable.name, row)
        if _multiple(origin, row) and count.isdigit() and int(count) % row == 0:
            outer = Axis(name, int(count) // row)
            with self.writer.open(*self.counted(outer, str(outer.extent))):
                yield Row(x, "0", str(row), add(mul(outer, idx(row)), x))
            return
        reach = interval(origin)
        outer = Axis(name, (reach.hi + variable.extent) // row + 1 if reach else 1 << 30)
        first, end = self.writer.fresh("n"), self.writer.fresh("n")
        self.writer.write(f"const idx {first} = {bare(self.index(origin))};")
        self.writer.write(f"const idx {end} = {first} + {count};")
        test = f"for (idx {name} = {first} / {row}; {name} * {row} < {end}; ++{name})"
        with self.writer.open(test, [name]):
            low = self.short(f"mt_max_idx({first} - {name} * {row}, 0)")
            self.writer.define(low)
            high = self.short(f"mt_min_idx({end} - {name} * {row}, {row})")
            yield Row(x, low, high, Binary("sub", add(mul(outer, idx(row)), x), origin))

    def each(
        self,
        row: Row,
        bodies: Sequence[Expr],
        write: Callable[[], None],
        clauses: str = "",
        cuts: int = CUTS,
        *,
        whole: bool = True,
    ) -> None:
        """Emits the innermost loop over a row, its body by `write`. The loop is cut where conditions in `bodies` change, and emitted once
        for each value of the first loop-invariant condition (loop unswitching), unless that has been done (`whole`).

        bodies: the expressions of the body, in terms of the row's variable; `write` is called for each part.
        """
        x, low, high = row.x, row.low, row.high
        guard = guard_of(bodies, x, self.facts) if cuts and x.extent >= WORTH_CUTTING else None
        cond = None
        if guard is None and whole and x.extent >= WORTH_CUTTING:
            cond = steady_of(bodies, x, self.facts)
        if cond is not None:
            test = self.writer.fresh("v")
            self.writer.write(f"const bool {test} = {bare(self.value(cond))};")
            for holds in (True, False):
                with (
                    self.writer.open(f"if ({'' if holds else '!'}{test})", fence=True),
                    self.given(cond, holds),
                ):
                    self.each(row, bodies, write, clauses, cuts, whole=False)
            return
        if guard is None:
            for low, high in parts(row.low, row.high, self._lanes if row.again else 0):
                head = f"for (idx {x.name} = {low}; {x.name} < {high}; ++{x.name})"
                with self.writer.open(head, [x.name]) as block:
                    write()
                    self.simd(block, clauses)
            return
        begin, end = low, high
        if guard.lower:
            first = self.extreme("max", [low, *(self._bound(e) for e in guard.lower)])
            begin = self.short(f"mt_min_idx({first}, {high})")
        if guard.upper:
            last = self.extreme("min", [high, *(self._bound(e) for e in guard.upper)])
            end = self.short(f"mt_max_idx({last}, {begin})")
        pieces = [(begin, end, [(t, True) for t in guard.terms])]
        if guard.lower:
            pieces.insert(0, (low, begin, [(guard.cond, False)]))
        if guard.upper:
            pieces.append((end, high, [(guard.cond, False)]))
        for start, stop, facts in pieces:
            with ExitStack() as stack:
                stack.enter_context(self.writer.open(f"if ({start} < {stop})", fence=True))
                for cond, holds in facts:
                    stack.enter_context(self.given(cond, holds))
                part = Row(x, start, stop, row.at)
                self.each(part, bodies, write, clauses, cuts - 1, whole=whole)

    def _bound(self, e: Expr) -> str:
        return bare(self.index(e))

    def extreme(self, op: str, texts: Sequence[str]) -> str:
        """Text of the largest ("max") or smallest of some indices."""
        out = texts[0]
        for text in texts[1:]:
            out = f"mt_{op}_idx({out}, {text})"
        return out

    def along(
        self,
        variable: Axis,
        count: str,
        origin: Expr,
        point: Callable[[Expr], Point],
        uses: Sequence[Expr],
        write: Callable[[Point, Expr], None],
    ) -> None:
        """Emits the innermost loop, cut as by `rows` and `each`; its body by `write`, given the point and the position."""
        with self.rows(variable, count, origin, point, uses) as row:
            here = point(row.at)
            bodies = [substitute(e, dict(here)) for e in uses]
            self.each(row, bodies, lambda: write(here, row.at))

    def repeated(self, row: Row, site: Site) -> Row:
        """The same row of a map, with its last whole vector beginning earlier where that is correct and faster."""
        if not (row.low == "0" and row.high.isdigit() and self._lanes):
            return row
        made = [s.body for s in (*site.before, site.anchor, *site.followers) if isinstance(s, Compute)]  # fmt: skip
        again = left(int(row.high), self._lanes) >= FEWEST and costly(made)
        return replace(row, again=again and may_repeat(site, self.lines.view, self._in_place))

    def uses(self, site: Site) -> list[Expr]:
        """Everything that is read or written for one element of the step, as expressions over its axes."""
        s = site.anchor
        first = [*s.index, s.value] if isinstance(s, Scatter) else [s.body]
        return [*first, *self.later_uses(site)]

    def later_uses(self, site: Site) -> list[Expr]:
        """The same, without the anchor's value itself."""
        anchor = [] if isinstance(site.anchor, Scatter) else [site.anchor]
        stores = [Load(s.out, s.axes) for s in (*anchor, *site.followers)]
        return [*(value_of(s) for s in site.followers), *stores]


def _multiple(e: Expr, of: int) -> bool:
    """Whether `e` is a multiple of `of` whatever its atoms are."""
    total = affine(e)
    return total.constant % of == 0 and all(k % of == 0 for _, k in total.terms)


def write_element(e: Loops, site: Site, point: Point) -> None:
    """One element of a step without a reduction."""
    match site.anchor:
        case Compute(reduce=(), body=body):
            e.finish(site, point, e.body(body, point), body.dtype)
        case Scatter(value=value):
            e.finish(site, point, e.body(value, point), value.dtype)
        case Compute():
            raise InternalError(f"{site.anchor.out.name} reduces, but not by its method")
