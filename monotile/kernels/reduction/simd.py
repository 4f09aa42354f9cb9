"""Reductions of a single thread: whether vectors run along terms or outputs, and the number of partial sums."""

import math
from collections.abc import Callable

from monotile.analysis.contraction import factors
from monotile.analysis.encoding import coded_sides
from monotile.analysis.ends import segment_ends
from monotile.codegen.lines import Lines, stride
from monotile.codegen.site import Point, Range, Site, moved, ordered, unflatten
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, idx, loads, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cpu_decode import words_of
from monotile.kernels.reduction.method import AlongOutputs, AlongTerms, Reduce, Simd
from monotile.kernels.reduction.windows import TYPES, windows_of

POSITIONS = ("argmax", "argmin")
# Terms added one after the other before the partial sum joins the next: with 16 lanes, and partial sums of so many partial sums, the
# error of a float sum of n terms grows like that of 32 + 32 + n / 16384 additions.
PART, PARTS = 512, 32
LEAST = 32  # the same of outputs side by side, at least
FEW = 64  # terms, up to which lanes along a reduction cost more to add up than they save
SKIPPED = 4  # a load that skips up to so many elements is still worth a vector
LINE = 32  # elements, from which on a line is worth a call
STRIP = 64  # outputs that are accumulated side by side
WHOLE = 16  # outputs of whole vectors: a strip is such, and as long as the others, where that is possible
CHANNELS = 256  # of windows, at most, whose sums are kept at a time
STRIP_BYTES = 1 << 14  # of a thread's stack that these may take


def simd_of(site: Site, c: Compute, method: Reduce, lines: Lines) -> Simd:
    """Vectors run along neighbouring outputs where only that way they read neighbouring elements, or where the terms are few; else
    along the terms, in one loop over all reduce axes where memory runs straight along them."""
    order = reduced(c, method)
    if c.combiner in POSITIONS or not order:
        return AlongTerms()
    flat = flattened(order)
    straight = len(order) == 1 or (
        not _in_part(site, order) and lines.straight(_term(site, c, flat, order), flat)
    )
    run = flat if straight else order[-1]
    body = _term(site, c, run, order if straight else [run])
    count = _outputs(site, c, _lanes(lines, body, run), lines)
    if count:
        part = _part_of(flat.extent) if adds_floats(c) else 0
        if not part and windows_of(site, c, order, lines) is not None:
            channels = ordered(site)[-1].variable.extent
            return AlongOutputs(-(-channels // -(-channels // CHANNELS)), windows=True)
        return AlongOutputs(count, part)
    parts = tuple(n for n in (PART * PARTS, PART) if adds_floats(c) and run.extent > 2 * n)
    words = _words(c, run) if straight or len(order) == 1 else None
    if words is None:
        return AlongTerms(straight, parts, lines=lines_of(c, body, run, lines) is not None)
    most = words[1] * max(
        n for n in range(1, max(1, PART // words[1]) + 1) if run.extent % (words[1] * n) == 0
    )
    longer = tuple(n for n in parts[:-1] if n % most == 0)
    return AlongTerms(straight, (*longer, most) if most < run.extent else (), words)


def _in_part(site: Site, order: list[Axis]) -> bool:
    """Whether of some of these axes not all terms are walked."""
    names = {a.name for a in order}
    return any(b.axis in names for b in site.step.bounds)


def _term(site: Site, c: Compute, run: Axis, axes: list[Axis]) -> Expr:
    """The term of `c` at a position of `run`, which stands for `axes`."""
    return substitute(c.body, {**site.point, **unflatten(run, axes)})


def _words(c: Compute, run: Axis) -> tuple[int, int] | None:
    """Of a sum of products of which one factor is stored as codes: how many are in a word, and for how many neighbours what they share is the same."""
    sides = coded_sides(c)
    if len(sides) != 1 or len(c.reduce) != 1 or not adds_floats(c):
        return None
    return words_of(factors(c)[sides[0]], c.reduce[0], run.extent, PART)


def lines_of(c: Compute, body: Expr, run: Axis, lines: Lines) -> tuple[Load, Load] | None:
    """Of a sum of products, where along `run` both factors are elements side by side: what they load first. body: the term at a position of `run`."""
    products = isinstance(body, Binary) and body.op == "mul" and adds_floats(c)
    if not products or run.extent < LINE or segment_ends(c) is not None:
        return None
    assert isinstance(body, Binary)
    a, b = (x.x if isinstance(x, Cast) else x for x in (body.a, body.b))
    if not (isinstance(a, Load) and isinstance(b, Load)) or body.dtype not in TYPES:
        return None
    for x in (a, b):
        known = x.dtype in TYPES and x.dtype.compute is body.dtype
        if not known or any(loads(i) for i in x.index) or not lines.straight(x, run):
            return None
        if lines.offset(x).coefficient(run) != 1:
            return None
    start: dict[str, Expr] = {run.name: idx(0)}
    first = (Load(x.tensor, tuple(substitute(i, start) for i in x.index)) for x in (a, b))
    return (next(first), next(first))


def _outputs(site: Site, c: Compute, terms: int, lines: Lines) -> int:
    """Outputs along which vectors had better run than along the terms of one, where a vector is worth `terms` of these; 0 for none."""
    ranges = ordered(site)
    if not ranges or segment_ends(c) is not None:
        return 0
    x, point = lines.straightened(*outputs_along(site, c, ranges[-1]))
    outputs = _lanes(lines, substitute(c.body, dict(point)), x)
    better = outputs >= terms and 1 < outputs and terms < FEW
    most = min(STRIP, x.extent, ranges[-1].variable.extent) if better else 0
    whole = math.gcd(x.extent, ranges[-1].variable.extent)
    even = (n for n in range(most // WHOLE * WHOLE, 0, -WHOLE) if whole % n == 0)
    return next(even, most)


def _lanes(lines: Lines, body: Expr, along: Axis) -> int:
    """What a vector along `along` is worth: its iterations, a part of them where some load skips elements, 1 where
    some load does not move by a constant."""
    widest = 1
    for x in loads(body):
        step = None if any(loads(i) for i in x.index) else stride(lines.offset(x), along)
        if step is None or abs(step) > SKIPPED:
            return 1
        widest = max(widest, abs(step))
    return along.extent // (1 if widest == 1 else SKIPPED) if lines.straight(body, along) else 1


def _part_of(terms: int) -> int:
    """How many of `terms` are added one after the other where no lanes share them, about twice the root: values that are small beside
    the total, as those of some channels may be, would each be rounded away. 0 for all of a few."""
    part = LEAST
    while part < PART and part * part < 4 * terms:
        part *= 2
    return part if terms > 2 * part else 0


def why_not(c: Compute, method: Reduce, site: Site, lines: Lines) -> str:
    """Why a thread cannot reduce so by itself; "" where it can."""
    simd, order = method.simd or AlongTerms(), reduced(c, method)
    parts = simd.parts if isinstance(simd, AlongTerms) else (simd.part,) if simd.part else ()
    if parts and not adds_floats(c):
        return "only sums of floats have partial sums"
    if len(parts) > 2 or any(n < 1 for n in parts) or list(parts) != sorted(set(parts))[::-1]:
        return f"partial sums of {parts} terms"
    if isinstance(simd, AlongTerms):
        run, axes = (flattened(order), order) if simd.flat else (order[-1], order[-1:])
        if simd.lines and lines_of(c, _term(site, c, run, axes), run, lines) is None:
            return "its terms are no products of two lines"
        if simd.decoded and simd.decoded != _words(c, flattened(order)):
            return f"words of {simd.decoded} are not what it reads"
        if simd.decoded and size(order) % (parts[-1] if parts else 1):
            return f"partial sums of {parts} terms, not all of them whole"
        one = c.combiner in POSITIONS or not order
        if simd.flat and len(order) > 1 and _in_part(site, order):
            return "its terms are several loops, each from its first live position on"
        return "its terms are one loop" if one and not simd.flat else ""
    if c.combiner in POSITIONS or not order:
        return "its vectors cannot run along outputs"
    if not site.ranges:
        return "there are no outputs side by side"
    if segment_ends(c) is not None:
        return "each output has ends of its own"
    if simd.windows and (simd.part or windows_of(site, c, order, lines) is None):
        return "its terms are no windows of neighbours"
    most = min(ordered(site)[-1].variable.extent, STRIP_BYTES // c.body.dtype.itemsize)
    return "" if 1 <= simd.count <= most else f"{simd.count} outputs side by side of {most}"


def reduced(c: Compute, method: Reduce) -> list[Axis]:
    """The reduce axes in the method's order."""
    return [c.reduce[p] for p in method.order or range(len(c.reduce))]


def flattened(order: list[Axis]) -> Axis:
    """One axis for all of `order`."""
    return Axis("r", size(order))


def size(axes: list[Axis]) -> int:
    """Values of all `axes` together."""
    return math.prod(a.extent for a in axes)


def adds_floats(c: Compute) -> bool:
    """Whether the order of terms matters to the result's error."""
    return c.combiner == "sum" and c.body.dtype.is_float


def outputs_along(
    site: Site, c: Compute, last: Range
) -> tuple[Axis, Expr, Callable[[Expr], Point], list[Expr]]:
    """What `Loops.rows` and `Lines.straightened` want to know about the innermost range of outputs."""
    return last.variable, last.origin, lambda at: moved(site, last, at), [c.body]
