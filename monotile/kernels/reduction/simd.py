"""Reductions of a single CPU thread: whether vectors run along terms or outputs, and the number of partial sums."""

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
LEAST = 32  # the least length of a partial sum of neighbouring outputs
FEW = (
    64  # terms, up to which the horizontal sum of vectors along the terms costs more than they save
)
SKIPPED = 4  # a load that skips up to so many elements is still worth a vector
LINE = 32  # elements, from which on a dot product is worth a call
STRIP = 64  # outputs of a strip
WHOLE = 16  # outputs of whole vectors: a strip has a multiple, and all strips have equal length, if possible
CHANNELS = 256  # most channels of windows whose sums are kept at a time
STRIP_BYTES = 1 << 14  # of a thread's stack that a strip may take


def simd_of(site: Site, c: Compute, method: Reduce, lines: Lines) -> Simd:
    """Vectors run along neighbouring outputs if only these are contiguous, or if there are few terms. Otherwise they run along the terms,
    in one loop over all reduce axes if memory is contiguous along these."""
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
    """Whether some of these axes have live bounds."""
    names = {a.name for a in order}
    return any(b.axis in names for b in site.step.bounds)


def _term(site: Site, c: Compute, run: Axis, axes: list[Axis]) -> Expr:
    """The term of `c` at a position of `run`, to which `axes` are flattened."""
    return substitute(c.body, {**site.point, **unflatten(run, axes)})


def _words(c: Compute, run: Axis) -> tuple[int, int] | None:
    """For a sum of products with one factor stored as codes: how many codes share a word, and how many neighbours share the other operands
    of decoding; None for any other reduction."""
    sides = coded_sides(c)
    if len(sides) != 1 or len(c.reduce) != 1 or not adds_floats(c):
        return None
    return words_of(factors(c)[sides[0]], c.reduce[0], run.extent, PART)


def lines_of(c: Compute, body: Expr, run: Axis, lines: Lines) -> tuple[Load, Load] | None:
    """For a dot product whose factors are both contiguous along `run`: their first loads; else None. body: the term at a position of `run`."""
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
    """The number of outputs of a strip, if vectors along the outputs are better than along the terms, whose benefit is `terms`; else 0."""
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
    """The benefit of vectors along `along`: its extent, a part of it if a load skips elements, 1 if a load has no constant stride."""
    widest = 1
    for x in loads(body):
        step = None if any(loads(i) for i in x.index) else stride(lines.offset(x), along)
        if step is None or abs(step) > SKIPPED:
            return 1
        widest = max(widest, abs(step))
    return along.extent // (1 if widest == 1 else SKIPPED) if lines.straight(body, along) else 1


def _part_of(terms: int) -> int:
    """The length of a partial sum where no vector lanes share the terms, about twice the root of their number: a single running sum would
    round away terms that are small beside the total. 0 for a single sum, where terms are few."""
    part = LEAST
    while part < PART and part * part < 4 * terms:
        part *= 2
    return part if terms > 2 * part else 0


def why_not(c: Compute, method: Reduce, site: Site, lines: Lines) -> str:
    """Why a single thread cannot reduce in this way; "" if it can."""
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
    """The product of the extents of `axes`."""
    return math.prod(a.extent for a in axes)


def adds_floats(c: Compute) -> bool:
    """Whether the order of terms affects the error of the result."""
    return c.combiner == "sum" and c.body.dtype.is_float


def outputs_along(
    site: Site, c: Compute, last: Range
) -> tuple[Axis, Expr, Callable[[Expr], Point], list[Expr]]:
    """The arguments of `Loops.rows` and `Lines.straightened` for the innermost range of outputs."""
    return last.variable, last.origin, lambda at: moved(site, last, at), [c.body]
