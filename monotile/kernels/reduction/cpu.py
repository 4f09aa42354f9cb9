"""Reductions on the CPU: vectors along the terms of an output, or along a strip of neighbouring outputs."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import msgspec

from monotile.analysis.affine import normalised_indices
from monotile.analysis.encoding import coded_sides
from monotile.analysis.ends import segment_ends
from monotile.codegen.base import plus
from monotile.codegen.loops import Loops, Row, Walk
from monotile.codegen.site import Point, Site, ordered, unflatten
from monotile.codegen.spelling import SMALL_FLOATS, SUFFIX, bare, combine, identity, literal
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, add, idx, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cpu_columns import MOST_HELD, hold_columns, of_columns, read_columns
from monotile.kernels.common.cpu_decode import write_decoded
from monotile.kernels.reduction.cpu_windows import write_windows
from monotile.kernels.reduction.method import AlongOutputs, AlongTerms, Reduce
from monotile.kernels.reduction.segmented import write_ends
from monotile.kernels.reduction.simd import (
    POSITIONS,
    adds_floats,
    flattened,
    lines_of,
    outputs_along,
    reduced,
    size,
)
from monotile.kernels.reduction.strips import Strip

_SIMD = {"sum": "+", "prod": "*", "max": "max", "min": "min"}


@dataclass(frozen=True, slots=True)
class Terms:
    """A loop over terms: `variable` runs from 0 to the count of `walk`, whose first position is added to it."""

    variable: Axis
    walk: Walk

    @property
    def position(self) -> Expr:
        return add(self.walk.first, self.variable)


def write(e: Loops, site: Site) -> None:
    """Writes a step whose anchor is a reduction."""
    c, method = site.anchor, site.step.method
    assert isinstance(method, Reduce)
    if not isinstance(c, Compute) or c.combiner is None:
        raise InternalError(f"{c.out.name} is no reduction")
    order, simd = reduced(c, method), method.simd or AlongTerms()
    if isinstance(simd, AlongOutputs):
        _side_by_side(e, site, c, order, simd)
        return
    with e.over(ordered(site)):
        total = _accumulate(e, site, c, order, simd)
        e.finish(site, site.point, total, DType.I64 if c.combiner in POSITIONS else c.body.dtype)


def _value(e: Loops, c: Compute, point: Mapping[str, Expr]) -> str:
    return e.body(c.body, point)


def _kind(e: Loops, c: Compute) -> str:
    """The C type of a partial result."""
    return "int" if c.body.dtype is DType.BOOL else e.values[c.body.dtype]


def _accumulate(e: Loops, site: Site, c: Compute, order: list[Axis], simd: AlongTerms) -> str:
    """Writes the reduction of one output. Returns the text of its result."""
    assert c.combiner is not None
    point = site.point
    if c.combiner in POSITIONS:
        return _position(e, c, point, order)
    total = e.writer.fresh("s")
    e.writer.write(f"{_kind(e, c)} {total} = {bare(literal(identity(c.combiner, c.body.dtype)))};")
    walks = [e.walked(a, site) for a in order]
    if (ends := segment_ends(c)) is not None:
        first, end = write_ends(e, ends, point)
        start = Axis(first, order[0].extent) if first.isidentifier() else idx(int(first))
        walks = [Walk(start, e.short(f"{end} - {first}"))]
        c = msgspec.structs.replace(c, body=ends.body)
    if simd.flat:
        flat = flattened(order)
        walk = walks[0] if len(order) == 1 else Walk(idx(0), str(flat.extent))
        _run(e, c, point, order, Terms(flat, walk), total, simd)
    else:
        loops = [
            Terms(Axis(f"r{k}", a.extent), walk)
            for k, (a, walk) in enumerate(zip(order, walks, strict=True))
        ]
        inside = dict(point) | {a.name: t.position for a, t in zip(order, loops[:-1], strict=False)}
        _nest(e, c, inside, loops, order[-1], total, simd)
    e.writer.define(total)
    return f"({total} != 0)" if c.body.dtype is DType.BOOL else total


def _nest(
    e: Loops,
    c: Compute,
    point: Point,
    loops: list[Terms],
    last: Axis,
    total: str,
    simd: AlongTerms,
) -> None:
    """Writes the nested `loops`, of which the innermost runs over `last`, and adds their terms to `total`."""
    first, *rest = loops
    if not rest:
        _run(e, c, point, [last], replace(first, variable=flattened([last])), total, simd)
        return
    with (
        e.writer.open(*e.counted(first.variable, first.walk.count)),
        _partial(e, c, total, wanted=len(rest) > 1) as into,
    ):
        _nest(e, c, point, rest, last, into, simd)


@contextmanager
def _partial(e: Loops, c: Compute, total: str, *, wanted: bool) -> Generator[str]:
    """Declares a partial sum that is added to `total` at the end, if one is wanted and floats are added; otherwise yields `total` itself."""
    if not wanted or not adds_floats(c):
        yield total
        return
    part = e.writer.fresh("s")
    e.writer.write(f"{_kind(e, c)} {part} = {bare(literal(identity('sum', c.body.dtype)))};")
    yield part
    e.writer.write(f"{total} = {total} + {part};")


def _run(
    e: Loops,
    c: Compute,
    point: Point,
    axes: list[Axis],
    terms: Terms,
    total: str,
    simd: AlongTerms,
) -> None:
    """Writes the innermost loop of a reduction, over `axes` flattened to the variable of `terms`."""
    assert c.combiner is not None
    parts = simd.parts
    real, kind = c.body.dtype.is_float, _kind(e, c)
    with ExitStack() as stack:
        origin, count, variable = terms.walk.first, terms.walk.count, terms.variable
        for left, most in zip(range(len(parts), 0, -1), parts, strict=True):
            name = "ro" if left == 1 else "rm"
            start, count = stack.enter_context(e.blocks(name, variable.extent, count, most))
            total = stack.enter_context(_partial(e, c, total, wanted=left > 1))
            variable = Axis(variable.name, most)
            origin = add(origin, start)
        here = {**point, **unflatten(add(origin, variable), axes)}
        if simd.lines:
            text = _product_of_lines(e, c, substitute(c.body, here), variable, count)
            e.writer.write(f"{total} = {bare(combine('sum', total, text, c.body.dtype))};")
            return
        if not real:
            with e.writer.open(*e.counted(variable, count)):
                text = combine(c.combiner, total, _value(e, c, here), c.body.dtype)
                e.writer.write(f"{total} = {bare(text)};")
            return
        part = e.writer.fresh("p")
        e.writer.write(f"{kind} {part} = {bare(literal(identity(c.combiner, c.body.dtype)))};")
        clauses = f" reduction({_SIMD[c.combiner]} : {part})"
        bad = ""
        if c.combiner in ("max", "min"):
            bad = e.writer.fresh("bad")
            e.writer.write(f"int {bad} = 0;")
            clauses += f" reduction(| : {bad})"

        def write() -> None:
            text = _value(e, c, here)
            if bad:
                x = e.writer.fresh("x")
                sign = ">" if c.combiner == "max" else "<"
                e.writer.write(f"const {kind} {x} = {bare(text)};")
                e.writer.write(f"{part} = {x} {sign} {part} ? {x} : {part};")
                e.writer.write(f"{bad} |= {x} != {x};")
            else:
                e.writer.write(f"{part} {'+' if c.combiner == 'sum' else '*'}= {bare(text)};")

        if simd.decoded:
            at = {**point, **unflatten(add(origin, Axis("k", variable.extent)), axes)}
            _decoded(e, c, at, variable.extent, part, simd)
        else:
            row = Row(variable, "0", count, variable, again=bool(bad))
            e.each(row, [substitute(c.body, here)], write, clauses)
        if bad:
            part = f"({bad} ? ({kind})MT_NAN : {part})"
        e.writer.write(f"{total} = {bare(combine(c.combiner, total, part, c.body.dtype))};")


def _product_of_lines(e: Loops, c: Compute, body: Expr, along: Axis, count: str) -> str:
    """Text of the dot product `body` of two contiguous lines, over `count` values of `along`."""
    sides = lines_of(c, body, along, e.lines)
    assert sides is not None
    a, b = (SMALL_FLOATS.get(x.dtype) or SUFFIX[x.dtype] for x in sides)
    name = e.kernel("line", 1, 1, c.body.dtype, {"A": a, "B": b})
    first, second = (plus(*e.element(x)) for x in sides)
    return f"{name}({first}, {second}, {count})"


def _decoded(e: Loops, c: Compute, at: Point, count: int, total: str, simd: AlongTerms) -> None:
    """Writes the decoding of `count` terms of the factor that is stored as codes, and their multiplication with the other factor. at: the
    reduction's point, with the term as variable `k`."""
    (found,) = coded_sides(c)
    assert isinstance(c.body, Binary)
    sides = [substitute(side, dict(at)) for side in (c.body.a, c.body.b)]
    coded, other = sides[found], sides[1 - found]
    e.writer.write(f"{_kind(e, c)} decoded[{count}];")
    assert simd.decoded is not None
    write_decoded(e, coded, str(count), simd.decoded, ("decoded", c.body.dtype))
    term = Axis("r", count)
    body = normalised_indices(substitute(other, {"k": term}))

    def multiply() -> None:
        e.writer.write(f"{total} += {e.root(body)} * decoded[r];")

    e.each(Row(term, "0", str(count), term), [body], multiply, f" reduction(+ : {total})")


def _position(e: Loops, c: Compute, point: Point, order: list[Axis]) -> str:
    """Writes an argmax or argmin: of equal values the first, and NaN before all others."""
    sign = ">" if c.combiner == "argmax" else "<"
    kind = e.values[c.body.dtype]
    extreme = identity("max" if c.combiner == "argmax" else "min", c.body.dtype)
    best, at = e.writer.fresh("best"), e.writer.fresh("at")
    e.writer.write(f"{kind} {best} = {bare(literal(extreme))};")
    e.writer.write(f"idx {at} = 0;")
    flat = flattened(order)
    here = {
        **point,
        **unflatten(flat, list(c.reduce)),
    }  # row-major: the first of equals comes first
    with e.writer.open(*e.counted(flat, str(flat.extent))):
        x = e.writer.fresh("x")
        e.writer.write(f"const {kind} {x} = {bare(_value(e, c, here))};")
        test = f"{x} {sign} {best}"
        if c.body.dtype.is_float:
            test += f" || ({x} != {x} && {best} == {best})"
        with e.writer.open(f"if ({test})"):
            e.writer.write(f"{best} = {x};")
            e.writer.write(f"{at} = {flat.name};")
    e.writer.define(at)
    return at


def _side_by_side(e: Loops, site: Site, c: Compute, order: list[Axis], simd: AlongOutputs) -> None:
    """Writes a reduction in strips of outputs along the innermost range."""
    *outer, last = ordered(site)
    variable, origin, at, uses = outputs_along(site, c, last)
    axis = c.axes[last.dim.axes[-1]]
    site, held = of_columns(site, frozenset({axis})) if axis.extent <= MOST_HELD else (site, ())
    hold_columns(e, held, axis, site.point)

    def finish(point: Point, strip: Strip) -> None:
        with e.writer.open(*e.counted(strip.lane, strip.count)) as block:
            read_columns(e, held, point[axis.name])
            text = f"({strip.slot} != 0)" if c.body.dtype is DType.BOOL else strip.slot
            e.finish(site, point, text, c.body.dtype)
            e.simd(block)

    if simd.windows:
        write_windows(e, site, c, order, simd.count, finish)
        return
    with ExitStack() as stack:
        stack.enter_context(e.over(outer))
        row = stack.enter_context(e.rows(variable, e.count(last), origin, at, uses))
        lane = Axis("j", simd.count)
        length = row.high if row.low == "0" else e.short(f"{row.high} - {row.low}")
        start, taken = stack.enter_context(e.blocks("jo", row.x.extent, length, simd.count))
        first = idx(0) if row.low == "0" else Axis(row.low, row.x.extent)
        position = {row.x.name: add(first, add(start, lane))}
        point = {name: substitute(v, position) for name, v in at(row.at).items()}
        strip = Strip(e.writer.fresh("s"), _kind(e, c), lane, taken)
        _write_strip(e, c, strip)
        loops = [Terms(Axis(f"r{k}", a.extent), e.walked(a, site)) for k, a in enumerate(order)]
        terms = {a.name: t.position for a, t in zip(order, loops, strict=True)}
        _add_all(e, c, {**point, **terms}, loops, strip, (order[-1], simd.part))
        finish(point, strip)


def _add_all(
    e: Loops, c: Compute, here: Point, loops: list[Terms], strip: Strip, parts: tuple[Axis, int]
) -> None:
    """Writes `loops`, which combine all terms with a strip. parts: the axis of the last loop, and the number of terms that are first added
    to a strip of partial sums; 0 for no partial sums."""
    (axis, most), last = parts, loops[-1]
    if not most:
        with _opened(e, loops[:-1]):
            _add_terms(e, c, here, last.variable, last.walk.count, strip)
        return
    axes = [t.variable for t in loops]
    inside = next((k for k in range(len(loops)) if size(axes[k:]) <= most), len(loops) - 1)
    blocks = e.blocks("ro", last.variable.extent, last.walk.count, most)
    with _opened(e, loops[:inside]), blocks as (start, count):
        part = replace(strip, name=e.writer.fresh("s"))
        _write_strip(e, c, part)
        run = Axis(last.variable.name, min(last.variable.extent, most))
        now = {**here, axis.name: add(last.walk.first, add(start, run))}
        with _opened(e, loops[inside:-1]):
            _add_terms(e, c, now, run, count, part)
        with e.writer.open(*e.counted(strip.lane, strip.count)) as block:
            e.writer.write(f"{strip.slot} += {part.slot};")
            e.simd(block)


@contextmanager
def _opened(e: Loops, loops: list[Terms]) -> Generator[None]:
    with ExitStack() as stack:
        for t in loops:
            stack.enter_context(e.writer.open(*e.counted(t.variable, t.walk.count)))
        yield


def _write_strip(e: Loops, c: Compute, strip: Strip) -> None:
    """Declares a strip's array, filled with the combiner's identity."""
    assert c.combiner is not None
    first = bare(literal(identity(c.combiner, c.body.dtype)))
    e.writer.write(f"{strip.kind} {strip.name}[{strip.lane.extent}];")
    with e.writer.open(*e.counted(strip.lane, strip.count)):
        e.writer.write(f"{strip.slot} = {first};")


def _add_terms(e: Loops, c: Compute, point: Point, over: Axis, count: str, strip: Strip) -> None:
    """Writes the loop over `count` values of `over`, which combines one term with each partial result of a strip."""
    assert c.combiner is not None
    combiner, lane = c.combiner, strip.lane

    def write() -> None:
        text = combine(combiner, strip.slot, _value(e, c, point), c.body.dtype)
        e.writer.write(f"{strip.slot} = {bare(text)};")

    with e.writer.open(*e.counted(over, count)):
        e.each(Row(lane, "0", strip.count, lane), [substitute(c.body, dict(point))], write)
