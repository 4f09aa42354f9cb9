"""Depthwise windows of a channels-last image: sums of several positions in registers."""

from dataclasses import dataclass

from monotile.analysis.affine import affine
from monotile.analysis.contraction import uncast
from monotile.analysis.ends import segment_ends
from monotile.analysis.masked import masked
from monotile.analysis.unconditional import TRUE
from monotile.codegen.lines import Lines
from monotile.codegen.site import Site, ordered
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    COMPARE,
    Axis,
    Binary,
    Expr,
    Load,
    axes_of,
    conjuncts,
    loads,
    substitute,
)
from monotile.ir.program import Compute

PLACES, VECTORS = 4, 2  # positions, and vectors of channels, whose sums a thread has in registers
ALONE = 4  # vectors of channels of a single position
TYPES = (DType.F16, DType.BF16, DType.F32, DType.F64)  # types with vector loads


@dataclass(frozen=True, slots=True)
class Windows:
    """image: the operand that windows slide over. factor: the other operand. down: conditions on a row of a window; across: on a position
    and a term of a row. Each condition holds on an interval."""

    image: Load
    factor: Load
    down: tuple[Expr, ...]
    across: tuple[Expr, ...]


def windows_of(site: Site, c: Compute, order: list[Axis], lines: Lines) -> Windows | None:
    """The windows of a sum of products, or None where it is none over neighbouring positions along the axis before the last. order: the
    reduce axes; the last one is that of a row's terms."""
    if (
        c.combiner != "sum"
        or c.live
        or site.step.bounds
        or segment_ends(c) is not None
        or len(c.axes) < 2
    ):
        return None
    sides = _sides(c)
    if sides is None or len(order) not in (1, 2) or not _apart(site, c):
        return None
    image, factor, conditions = sides
    place, channel, term = c.axes[-2], c.axes[-1], order[-1]
    row = order[0] if len(order) == 2 else None
    if not axes_of(image) >= {place, channel, *order} or place in axes_of(factor):
        return None
    across = tuple(x for x in conditions if axes_of(x) & {place, term})
    down = tuple(x for x in conditions if x not in across)
    if any(channel in axes_of(x) for x in conditions) or any(row in axes_of(x) for x in across):
        return None
    axes = [*order, *(r.variable for r in ordered(site)[-2:])]
    for x in (image, factor):
        here = substitute(x, dict(site.point))
        assert isinstance(here, Load)
        if (
            any(not lines.straight(here, a) for a in axes)
            or lines.offset(here).coefficient(axes[-1]) != 1
        ):
            return None
    return Windows(image, factor, down, across)


def _sides(c: Compute) -> tuple[Load, Load, tuple[Expr, ...]] | None:
    """Image, factor, and the conditions under which the image is not padded with zeros."""
    match c.body:
        case Binary("mul", a, b) if c.body.dtype.is_float:
            found = masked(uncast(a)), masked(uncast(b))
        case _:
            return None
    for image, factor in (found, found[::-1]):
        if image is None or factor is None or factor.cond != TRUE:
            continue
        conditions = tuple(x for x in conjuncts(image.cond) if x != TRUE)
        both = (image.load, factor.load)
        known = all(x.dtype in TYPES and x.dtype.compute is c.body.dtype for x in both)
        if (
            not known
            or any(loads(i) for x in both for i in x.index)
            or not all(map(_linear, conditions))
        ):
            continue
        if c.axes[-2] in axes_of(image.load):
            return image.load, factor.load, conditions
    return None


def _apart(site: Site, c: Compute) -> bool:
    """Whether the last two axes have ranges of their own."""
    own = [r.dim.axes for r in ordered(site)[-2:]]
    return own == [(len(c.axes) - 2,), (len(c.axes) - 1,)]


def _linear(e: Expr) -> bool:
    """Whether `e` compares sums of axes, so that it holds on an interval of each axis."""
    if not isinstance(e, Binary) or e.op not in COMPARE or e.op == "ne" or loads(e):
        return False
    return all(isinstance(atom, Axis) for x in (e.a, e.b) for atom, _ in affine(x).terms)
