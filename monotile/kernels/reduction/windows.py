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

PLACES, VECTORS = 4, 2  # whose sums a thread has in registers
ALONE = 4  # vectors of a place by itself
TYPES = (DType.F16, DType.BF16, DType.F32, DType.F64)  # that vectors are loaded of


@dataclass(frozen=True, slots=True)
class Windows:
    """image: what windows lie on. factor: what it is multiplied with. down: conditions of a window's row, across: of a place and a term of a row. Each holds
    for neighbours of what it holds for on both sides."""

    image: Load
    factor: Load
    down: tuple[Expr, ...]
    across: tuple[Expr, ...]


def windows_of(site: Site, c: Compute, order: list[Axis], lines: Lines) -> Windows | None:
    """order: the reduce axes, the last one that of a row's terms. None where windows of neighbours along the axis before the last are not such."""
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
    """What is multiplied, of which one side may be padded with zeros; and when it is not zero."""
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
    """Whether `e` compares sums of axes, so that what is between two places where it holds holds as well."""
    if not isinstance(e, Binary) or e.op not in COMPARE or e.op == "ne" or loads(e):
        return False
    return all(isinstance(atom, Axis) for x in (e.a, e.b) for atom, _ in affine(x).terms)
