"""Windows of a depthwise convolution on the CPU: sums in registers, for several positions at once where windows are complete, otherwise for
one."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from monotile.codegen.base import plus
from monotile.codegen.loops import Loops
from monotile.codegen.site import Point, Range, Site, ordered
from monotile.codegen.spelling import SMALL_FLOATS, SUFFIX, bare
from monotile.ir.expr import Axis, Expr, Load, add, idx, substitute
from monotile.ir.program import Compute
from monotile.kernels.reduction.strips import Strip
from monotile.kernels.reduction.windows import ALONE, PLACES, VECTORS, Windows, windows_of

Finish = Callable[[Point, Strip], None]


@dataclass(frozen=True, slots=True)
class _Part:
    """Texts of the first and the number of the live rows of a window, or terms of a row."""

    first: str
    count: str


def write_windows(
    e: Loops, site: Site, c: Compute, order: list[Axis], channels: int, finish: Finish
) -> None:
    """Writes the step. channels: the length of a strip, whose sums are kept at a time. finish: writes the epilogue of a strip of sums."""
    found = windows_of(site, c, order, e.lines)
    assert found is not None
    *outer, places, last = ordered(site)
    w, kind, term = e.writer, e.values[c.body.dtype], order[-1]
    extent = places.variable.extent

    def at(place: Expr, channel: Expr) -> Point:
        moved = {places.variable.name: place, last.variable.name: channel}
        return {name: substitute(x, moved) for name, x in site.point.items()}

    with ExitStack() as stack:
        stack.enter_context(e.over(outer))
        rows = _Part("0", "1")
        if len(order) == 2:
            rows = _counting(e, found.down, site.point, order[0])
        begin, end = _whole(e, site, term, places, found)
        w.write("idx next = 0;")
        stack.enter_context(w.open(f"while (next < {e.count(places)})", ["next"]))
        w.write(
            f"const bool several = next >= {begin} && next < {end} && {end} - {begin} >= {PLACES};"
        )
        w.write(f"const idx first = several ? mt_min_idx(next, {end} - {PLACES}) : next;")
        w.define("first")
        w.write(f"const idx behind = first + (several ? {PLACES} : 1);")
        with e.blocks("jo", last.variable.extent, e.count(last), channels) as (start, taken):
            lane = Axis("j", channels)
            w.write(f"{kind} windows[{PLACES}][{channels}];")
            strip = Strip("windows[0]", kind, lane, taken)
            here = at(Axis("first", extent), add(start, lane))
            call = _Call(e, c, order, found, here, places, strip)
            with w.open("if (several)", fence=True):
                call.write((PLACES, VECTORS), rows, _Part("0", str(term.extent)))
            with w.open("else", fence=True):
                call.write((1, ALONE), rows, _counting(e, found.across, here, term))
            with w.open("for (idx place = next; place < behind; ++place)", ["place"], fence=True):
                w.write("const idx window = place - first;")
                w.define("window")
                finish(
                    at(Axis("place", extent), add(start, lane)),
                    replace(strip, name="windows[window]"),
                )
        w.write("next = behind;")


def _counting(e: Loops, conditions: tuple[Expr, ...], point: Point, axis: Axis) -> _Part:
    """Writes the search for the interval of `axis` in which all conditions hold. Returns its texts."""
    if not conditions:
        return _Part("0", str(axis.extent))
    w, first, end = e.writer, e.writer.fresh(axis.name), e.writer.fresh(axis.name)

    def test(at: str) -> str:
        return _all(e, conditions, {**point, axis.name: Axis(at, axis.extent)})

    w.write(f"idx {first} = 0;")
    w.define(first)
    w.write(f"while ({first} < {axis.extent} && !({test(first)})) ++{first};")
    w.write(f"idx {end} = {first};")
    w.define(end)
    w.write(f"while ({end} < {axis.extent} && ({test(end)})) ++{end};")
    return _Part(first, f"{end} - {first}")


def _whole(e: Loops, site: Site, term: Axis, places: Range, found: Windows) -> tuple[str, str]:
    """Writes the search for the positions whose windows have all terms of a row. Returns the texts of the first and of the one after the
    last."""
    w, count = e.writer, e.count(places)
    begin, end = w.fresh("place"), w.fresh("place")

    def test(at: Expr) -> str:
        moved = {n: substitute(x, {places.variable.name: at}) for n, x in site.point.items()}
        ends = (_all(e, found.across, {**moved, term.name: idx(k)}) for k in (0, term.extent - 1))
        return " && ".join(ends)

    extent = places.variable.extent
    w.write(f"idx {begin} = 0;")
    w.define(begin)
    w.write(f"while ({begin} < {count} && !({test(Axis(begin, extent))})) ++{begin};")
    w.write(f"idx {end} = {count};")
    w.define(end)
    before = add(Axis(end, extent + 1), idx(-1))
    w.write(f"while ({end} > {begin} && !({test(before)})) --{end};")
    return begin, end


def _all(e: Loops, conditions: tuple[Expr, ...], point: Point) -> str:
    return " && ".join(e.value(substitute(x, dict(point))) for x in conditions) or "true"


@dataclass(frozen=True, slots=True)
class _Call:
    """Calls of `window.h` for a strip at the position `first` and its neighbours. point: of channel `j` of the strip."""

    e: Loops
    c: Compute
    order: list[Axis]
    found: Windows
    point: Point
    places: Range
    strip: Strip

    def write(self, tile: tuple[int, int], rows: _Part, terms: _Part) -> None:
        """tile: positions, and vectors of channels, whose sums are in registers."""
        sides = (self.found.image, self.found.factor)
        types = [SMALL_FLOATS.get(x.dtype) or SUFFIX[x.dtype] for x in sides]
        name = self.e.kernel(
            "window", *tile, self.c.body.dtype, dict(zip("AB", types, strict=True))
        )
        given = ", ".join(self._side(x, rows, terms) for x in sides)
        strip = self.strip
        self.e.writer.write(
            f"{name}({given}, {bare(rows.count)}, {bare(terms.count)}, {strip.count}, {strip.name}, {strip.lane.extent});"
        )

    def _side(self, x: Load, rows: _Part, terms: _Part) -> str:
        """Texts of the address of the operand's first row, and of its strides."""
        moved = substitute(x, dict(self.point))
        inner = [*self.order, self.strip.lane]
        start: dict[str, Expr] = {a.name: idx(0) for a in inner}
        here = substitute(moved, start)
        assert isinstance(here, Load)
        assert isinstance(moved, Load)
        offset = self.e.lines.offset(moved)
        place = offset.coefficient(Axis("first", self.places.variable.extent))
        row = offset.coefficient(self.order[0]) if len(self.order) == 2 else 0
        term = offset.coefficient(self.order[-1])
        first = plus(*self.e.element(here))
        for part, step in ((rows, row), (terms, term)):
            first += f" + {part.first} * (ptrdiff_t){step}" if part.first != "0" else ""
        return f"{first}, (mt_window_steps){{{place}, {row}, {term}}}"
