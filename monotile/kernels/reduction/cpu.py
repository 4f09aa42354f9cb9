"""Reductions on the CPU: lanes of partial results along the reduction, or a strip of outputs side by side."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from monotile.codegen.loops import Loops, Point, Row, Walk, stride
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare, combine, identity, literal
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, add, idx, loads, substitute
from monotile.ir.program import Compute
from monotile.kernels.reduction.method import Reduce

# Terms added one after the other before the partial sum joins the next: with 16 lanes, and partial sums of so many partial sums, the
# error of a float sum of n terms grows like that of 32 + 32 + n / 16384 additions. Loops round each other have a partial sum each.
PART, PARTS = 512, 32
LEAST = 32  # the same of outputs side by side, at least
FEW = 64  # terms, up to which lanes along a reduction cost more to add up than they save
SKIPPED = 4  # a load that skips up to so many elements is still worth a vector
STRIP = 64  # outputs that are accumulated side by side
_SIMD = {"sum": "+", "prod": "*", "max": "max", "min": "min"}


@dataclass(frozen=True, slots=True)
class Terms:
    """A loop over terms: `variable` runs from 0 over all that `walk` has."""

    variable: Axis
    walk: Walk

    @property
    def position(self) -> Expr:
        return add(self.walk.first, self.variable)


@dataclass(frozen=True, slots=True)
class Strip:
    """Partial results of outputs side by side: an array `name` of the C type `kind`. lane: runs over them. count: text of how many there are."""

    name: str
    kind: str
    lane: Axis
    count: str

    @property
    def slot(self) -> str:
        """Text of the partial result of the output `lane`."""
        return f"{self.name}[{self.lane.name}]"


def write(e: Loops, site: Site) -> None:
    """Write a step whose anchor is a reduction."""
    c, method = site.anchor, site.step.method
    assert isinstance(method, Reduce)
    if not isinstance(c, Compute) or c.combiner is None:
        raise InternalError(f"{c.out.name} is no reduction")
    order = [c.reduce[p] for p in method.order or range(len(c.reduce))]
    ranges = e.ordered(site)
    values = c.combiner not in ("argmax", "argmin")
    if values and ranges and _outputs_are_lanes(e, site, c, ranges[-1], order):
        _side_by_side(e, site, c, ranges, order)
        return
    with e.over(ranges):
        total = _accumulate(e, site, c, site.point, order)
        e.finish(site, site.point, total, c.body.dtype if values else DType.I64)


def _outputs_are_lanes(e: Loops, site: Site, c: Compute, last: Range, order: list[Axis]) -> bool:
    """Whether vectors had better run along neighbouring outputs than along the terms of one: where only that way
    they read neighbouring elements, or where the terms are few."""
    flat = Axis("r", _size(order))
    here = substitute(c.body, {**site.point, **unflatten(flat, order)})
    run = flat
    if len(order) > 1 and not e.straight(here, flat):
        run = order[-1]
        here = substitute(c.body, dict(site.point))
    terms = _lanes(e, here, run)
    x, point = e.straightened(*_along(e, site, c, last))
    outputs = _lanes(e, substitute(c.body, dict(point)), x)
    return outputs >= terms and 1 < outputs and terms < FEW


def _along(
    e: Loops, site: Site, c: Compute, last: Range
) -> tuple[Axis, Expr, Callable[[Expr], Point], list[Expr]]:
    """What `Loops.rows` wants to know about the innermost range of outputs."""
    return last.variable, last.origin, lambda at: e.moved(site, last, at), [c.body]


def _lanes(e: Loops, body: Expr, along: Axis) -> int:
    """What a vector along `along` is worth: its iterations, a part of them where some load skips elements, 1 where
    some load does not move by a constant."""
    widest = 1
    for x in loads(body):
        step = None if any(loads(i) for i in x.index) else stride(e.offset(x), along)
        if step is None or abs(step) > SKIPPED:
            return 1
        widest = max(widest, abs(step))
    return along.extent // (1 if widest == 1 else SKIPPED) if e.straight(body, along) else 1


def _value(e: Loops, c: Compute, point: Mapping[str, Expr]) -> str:
    return e.body(c.body, point)


def _accumulate(e: Loops, site: Site, c: Compute, point: Point, order: list[Axis]) -> str:
    """Write the reduction at one output; gives the text of its result."""
    assert c.combiner is not None
    if c.combiner in ("argmax", "argmin"):
        return _position(e, c, point, order)
    kind = "int" if c.body.dtype is DType.BOOL else e.values[c.body.dtype]
    total = e.writer.fresh("s")
    e.writer.write(f"{kind} {total} = {bare(literal(identity(c.combiner, c.body.dtype)))};")
    # One loop over all reduce axes where memory runs straight along them, else a loop for each.
    flat = Axis("r", _size(order))
    whole = {**point, **unflatten(flat, order)}
    walks = [e.walked(a, site) for a in order]
    if len(order) == 1:
        _run(e, c, {**point}, order, Terms(flat, walks[0]), total, kind)
    elif not site.spans and e.straight(substitute(c.body, dict(whole)), flat):
        _run(e, c, {**point}, order, Terms(flat, Walk(idx(0), str(flat.extent))), total, kind)
    else:
        loops = [
            Terms(Axis(f"r{k}", a.extent), walk)
            for k, (a, walk) in enumerate(zip(order, walks, strict=True))
        ]
        inside = dict(point) | {a.name: t.position for a, t in zip(order, loops[:-1], strict=False)}
        _nest(e, c, inside, loops, order[-1], total, kind)
    e.writer.define(total)
    return f"({total} != 0)" if c.body.dtype is DType.BOOL else total


def _nest(
    e: Loops, c: Compute, point: Point, loops: list[Terms], last: Axis, total: str, kind: str
) -> None:
    """Write `loops`, the last of them over `last`, which add to `total`."""
    first, *rest = loops
    if not rest:
        _run(e, c, point, [last], replace(first, variable=Axis("r", last.extent)), total, kind)
        return
    with (
        e.writer.open(*e.counted(first.variable, first.walk.count)),
        _partial(e, c, total, kind, wanted=len(rest) > 1) as into,
    ):
        _nest(e, c, point, rest, last, into, kind)


@contextmanager
def _partial(e: Loops, c: Compute, total: str, kind: str, *, wanted: bool) -> Generator[str]:
    """The name of a partial sum that is added to `total` at the end; that of `total` if none is wanted, or it is no float sum."""
    if not wanted or not _adds_floats(c):
        yield total
        return
    part = e.writer.fresh("s")
    e.writer.write(f"{kind} {part} = {bare(literal(identity('sum', c.body.dtype)))};")
    yield part
    e.writer.write(f"{total} = {total} + {part};")


def _run(
    e: Loops, c: Compute, point: Point, axes: list[Axis], terms: Terms, total: str, kind: str
) -> None:
    """Write the innermost loop of a reduction over `axes`, flattened to that of `terms`."""
    assert c.combiner is not None
    real, flat = c.body.dtype.is_float, terms.variable
    with ExitStack() as stack:
        origin, count = terms.walk.first, terms.walk.count
        variable, extent = flat, flat.extent
        for name, size in (("rm", PART * PARTS), ("ro", PART)):
            if _adds_floats(c) and extent > 2 * size:
                start, count = stack.enter_context(e.blocks(name, extent, count, size))
                total = stack.enter_context(_partial(e, c, total, kind, wanted=size > PART))
                variable, extent = Axis(flat.name, size), size
                origin = add(origin, start)
        here = {**point, **unflatten(add(origin, variable), axes)}
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

        row = Row(variable, "0", count, variable)
        e.each(row, [substitute(c.body, here)], write, clauses)
        if bad:
            part = f"({bad} ? ({kind})MT_NAN : {part})"
        e.writer.write(f"{total} = {bare(combine(c.combiner, total, part, c.body.dtype))};")


def _position(e: Loops, c: Compute, point: Point, order: list[Axis]) -> str:
    """Write an argmax or argmin: the first of equals, NaN before everything else."""
    sign = ">" if c.combiner == "argmax" else "<"
    kind = e.values[c.body.dtype]
    extreme = identity("max" if c.combiner == "argmax" else "min", c.body.dtype)
    best, at = e.writer.fresh("best"), e.writer.fresh("at")
    e.writer.write(f"{kind} {best} = {bare(literal(extreme))};")
    e.writer.write(f"idx {at} = 0;")
    flat = Axis("r", _size(order))
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


def _side_by_side(e: Loops, site: Site, c: Compute, ranges: list[Range], order: list[Axis]) -> None:
    """Write a reduction in strips of outputs along the innermost range."""
    *outer, last = ranges
    kind = "int" if c.body.dtype is DType.BOOL else e.values[c.body.dtype]
    variable, origin, at, uses = _along(e, site, c, last)
    with ExitStack() as stack:
        stack.enter_context(e.over(outer))
        row = stack.enter_context(e.rows(variable, e.count(last), origin, at, uses))
        size = min(STRIP, row.x.extent)
        lane = Axis("j", size)
        length = row.high if row.low == "0" else e.short(f"{row.high} - {row.low}")
        start, taken = stack.enter_context(e.blocks("jo", row.x.extent, length, size))
        first = idx(0) if row.low == "0" else Axis(row.low, row.x.extent)
        position = {row.x.name: add(first, add(start, lane))}
        point = {name: substitute(v, position) for name, v in at(row.at).items()}
        strip = Strip(e.writer.fresh("s"), kind, lane, taken)
        _write_strip(e, c, strip)
        _add_all(e, site, c, point, order, strip)
        with e.writer.open(*e.counted(lane, taken)) as block:
            text = f"({strip.slot} != 0)" if c.body.dtype is DType.BOOL else strip.slot
            e.finish(site, point, text, c.body.dtype)
            e.simd(block)


def _add_all(
    e: Loops, site: Site, c: Compute, point: Point, order: list[Axis], strip: Strip
) -> None:
    """Write the loops over `order`, which combine all terms with a strip; long sums by way of a strip of parts of them."""
    loops = [Terms(Axis(f"r{k}", a.extent), e.walked(a, site)) for k, a in enumerate(order)]
    here = {**point, **{a.name: t.position for a, t in zip(order, loops, strict=True)}}
    terms, last = _size(order), loops[-1]
    most = _part_of(terms)
    if not _adds_floats(c) or terms <= 2 * most:
        with _opened(e, loops[:-1]):
            _add_terms(e, c, here, last.variable, last.walk.count, strip)
        return
    inside = next((k for k in range(len(loops)) if _size(order[k:]) <= most), len(loops) - 1)
    blocks = e.blocks("ro", last.variable.extent, last.walk.count, most)
    with _opened(e, loops[:inside]), blocks as (start, count):
        part = replace(strip, name=e.writer.fresh("s"))
        _write_strip(e, c, part)
        run = Axis(last.variable.name, min(last.variable.extent, most))
        here[order[-1].name] = add(last.walk.first, add(start, run))
        with _opened(e, loops[inside:-1]):
            _add_terms(e, c, here, run, count, part)
        with e.writer.open(*e.counted(strip.lane, strip.count)) as block:
            e.writer.write(f"{strip.slot} += {part.slot};")
            e.simd(block)


@contextmanager
def _opened(e: Loops, loops: list[Terms]) -> Generator[None]:
    with ExitStack() as stack:
        for t in loops:
            stack.enter_context(e.writer.open(*e.counted(t.variable, t.walk.count)))
        yield


def _adds_floats(c: Compute) -> bool:
    """Whether the order of terms matters to the result's error."""
    return c.combiner == "sum" and c.body.dtype.is_float


def _part_of(terms: int) -> int:
    """How many of `terms` are added one after the other where no lanes share them: about twice the root. Values that are small beside
    the total, as those of some channels may be, would each be rounded away."""
    part = LEAST
    while part < PART and part * part < 4 * terms:
        part *= 2
    return part


def _write_strip(e: Loops, c: Compute, strip: Strip) -> None:
    """Write the array of a strip, with the combiner's identity in it."""
    assert c.combiner is not None
    first = bare(literal(identity(c.combiner, c.body.dtype)))
    e.writer.write(f"{strip.kind} {strip.name}[{strip.lane.extent}];")
    with e.writer.open(*e.counted(strip.lane, strip.count)):
        e.writer.write(f"{strip.slot} = {first};")


def _add_terms(e: Loops, c: Compute, point: Point, over: Axis, count: str, strip: Strip) -> None:
    """Write the loop over `count` values of `over` that combines a term with each partial result of a strip."""
    assert c.combiner is not None
    combiner, lane = c.combiner, strip.lane

    def write() -> None:
        text = combine(combiner, strip.slot, _value(e, c, point), c.body.dtype)
        e.writer.write(f"{strip.slot} = {bare(text)};")

    with e.writer.open(*e.counted(over, count)):
        e.each(Row(lane, "0", strip.count, lane), [substitute(c.body, dict(point))], write)


def _size(axes: list[Axis]) -> int:
    total = 1
    for a in axes:
        total *= a.extent
    return total
