"""Materialises what convolutions read, each position once.

A convolution reads each position of an image in several windows. What it reads may be more than a load: zero padding, one of several images
side by side, a normalised value, an enlarged image. A register tile that reads its operand in place needs one load, whose address is a part
that depends on the row plus a part that depends on the term. So such a factor is computed for all positions first, as a separate image
including padding, and the product reads that. Where operands are copied in wide pieces, that is worth it for images of which fewer bytes
than a piece lie side by side along each axis (squares of pixels read as channels).

A position is given by the sums of axes on which the factor depends: `i1 + r1` of a row and a tap is one coordinate.
"""

import math
from collections.abc import Container, Mapping

import msgspec

from monotile.analysis.affine import Affine, affine, contiguous_run, offset
from monotile.analysis.contraction import contraction, uncast
from monotile.analysis.masked import masked
from monotile.analysis.runs import read_in_runs
from monotile.analysis.uses import Uses
from monotile.analysis.words import by_words
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    COMPARE,
    Axis,
    Binary,
    Expr,
    Load,
    Tensor,
    axes_of,
    cast,
    children,
    idx,
    loads,
    map_loads,
    rebuild,
    sub,
    substitute,
)
from monotile.ir.intervals import Interval, interval
from monotile.ir.program import Compute, Program, Statement, compute
from monotile.targets.target import Target
from monotile.transform.layout.pad_channels import RUN
from monotile.transform.layout.padding import below
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body
from monotile.transform.simplify.dce import eliminate_dead_code

LEAST = 4  # rows and columns from which on a product has tiles
ALIASED = 1024  # bytes between neighbours of which few share a first-level cache: 16 lines of 64 bytes in 4 of its sets
REPEATED = 1.5  # windows that read a position, on average, from which on it is computed once

Terms = tuple[tuple[Axis, int], ...]  # of a coordinate: axes, coefficients without common divisor


class _Image(msgspec.Struct, frozen=True):
    """made: the image. coordinates: the sums of axes along its dimensions, from `first` on."""

    made: Compute
    coordinates: tuple[Terms, ...]
    first: tuple[int, ...]

    @property
    def read(self) -> Load:
        """The factor as a load of it."""
        places = zip(self.coordinates, self.first, strict=True)
        return Load(self.made.out, tuple(Affine(t, -low).expr for t, low in places))


def make_images(program: Program, target: Target) -> Program:
    """`program` with convolutions reading images that have each position once; the same object if there are none."""
    names, uses = Names(program), Uses(program)
    copied = frozenset(w.tensor.name for w in program.weights if w.copied)
    held = frozenset(w.tensor.name for w in program.weights)

    def go(body: Body) -> Body:
        out: list[Statement] = []
        images: dict[object, _Image] = {}
        alone: dict[str, Compute] = {}  # element-wise, and read once
        for s in body:
            s = map_bodies(s, go)
            if isinstance(s, Compute) and _is_alone(s, uses, program.changing):
                alone[s.out.name] = s
            found = None
            if isinstance(s, Compute) and not _in_place(s, copied):
                found = _made(s, alone, held, names, target)
            if found is not None:
                factor, image = found
                known = images.setdefault((image.made.out.shape, image.made.body), image)
                if known is image:
                    out.append(image.made)
                s = _reading(s, factor, msgspec.structs.replace(image, made=known.made).read)
            out.append(s)
        return tuple(out)

    changed = with_body(program, go(program.body))
    return program if changed is program else eliminate_dead_code(changed)


def _reading(s: Statement, factor: Expr, read: Load) -> Statement:
    assert isinstance(s, Compute)
    assert isinstance(s.body, Binary)
    sides = (
        read if x == factor else cast(read, x.dtype) if uncast(x) == factor else x
        for x in (s.body.a, s.body.b)
    )
    return msgspec.structs.replace(s, body=Binary("mul", *sides))


def _in_place(c: Compute, copied: Container[str]) -> bool:
    """Whether `c` is a product that reads windows in place, zero padding included."""
    found = contraction(c)
    return found is not None and read_in_runs(c, found, copied) > 0


def _made(
    c: Compute, alone: Mapping[str, Compute], held: Container[str], names: Names, target: Target
) -> tuple[Expr, _Image] | None:
    """The image of a factor of `c`, if `c` is a product for which that is worth it: of the left factor; for products of words of either
    factor, in its stored order; where copies are wide, of a scattered one. held: the weights."""
    found = contraction(c)
    if found is None or found.grains or c.live or not isinstance(c.body, Binary):
        return None
    if min(math.prod(c.axes[p].extent for p in side) for side in (found.m, found.n)) < LEAST:
        return None
    wide = target.has.wide_copies
    if wide:
        factors = [x for x in (found.left, found.right) if _is_scattered(x, c, held)]
    elif all(by_words(x.dtype, target.instructions) for x in (found.left, found.right)):
        factors = [found.left, found.right]
    else:
        factors = [c.body.b if found.swapped else c.body.a]
    for factor in factors:
        if not wide and isinstance(factor, Load) and _line(factor.tensor) % ALIASED:
            continue  # read in place without an image
        whole = map_loads(factor, lambda x: _inlined(x, alone))
        image = _image(c, whole, names, target)
        if image is not None:
            return factor, image
    return None


def _is_scattered(factor: Expr, c: Compute, held: Container[str]) -> bool:
    """Whether `factor` is a load, masked or not, of another tensor than `held`, of which fewer than RUN bytes lie side by side along each axis
    of `c`."""
    x = masked(factor)
    if x is None or x.load.tensor.name in held:
        return False
    where, lanes = offset(x.load), max(RUN // factor.dtype.itemsize, 2)
    axes = [a for a in (*c.axes, *c.reduce) if a.extent > 1]
    return all(contiguous_run(where, a, lanes) < lanes for a in axes)


def _is_alone(s: Compute, uses: Uses, changing: Container[str]) -> bool:
    """Whether `s` has a single, element-wise reader and may be computed there: its operands do not change in between."""
    read = {x.tensor.name for x in loads(s.body)}
    steady = not any(n in uses.whole or n in changing for n in (s.out.name, *read))
    plain = s.combiner is None and not s.live and s.out.dtype is s.body.dtype
    return plain and steady and s.out.dtype.itemsize >= 4 and uses.readers[s.out.name] == 1


def _inlined(x: Load, alone: Mapping[str, Compute]) -> Expr:
    """The loaded value; a value that only this load reads as its expression."""
    s = alone.get(x.tensor.name)
    if s is None:
        return x
    return substitute(s.body, {a.name: i for a, i in zip(s.axes, x.index, strict=True)})


def _line(t: Tensor) -> int:
    """Bytes between neighbours along the last dimension but one."""
    return t.shape[-1] * t.dtype.itemsize if len(t.shape) > 1 else 1


def _image(c: Compute, factor: Expr, names: Names, target: Target) -> _Image | None:
    """The image of `factor`; None if there is none, or its positions are hardly read more than once."""
    read = list(loads(factor))
    if not read or any(loads(i) for x in read for i in x.index):
        return None
    own = frozenset(axes_of(factor) & {*c.axes, *c.reduce})
    factor = _compared(factor)
    found = _coordinates(factor, own)
    if found is not None and target.has.wide_copies:  # what is summed lies together
        found = tuple(sorted(found, key=lambda t: {a for a, _ in t} <= {*c.reduce}))
        if found[-1][0][0].extent * factor.dtype.itemsize % RUN:
            return None
    spans = [_span(t) for t in found or ()]
    if found is None or all(len(t) == 1 for t in found) or None in spans:
        return None
    first = tuple(s.lo for s in spans if s)
    shape = tuple(s.hi - s.lo + 1 for s in spans if s)
    if math.prod(shape) * REPEATED > math.prod(a.extent for a in own):
        return None
    last = longer = shape[-1]
    if last * factor.dtype.itemsize % ALIASED == 0:
        longer += target.vector_bytes // factor.dtype.itemsize
    out = Tensor(names.fresh(f"{read[0].tensor.name}_image"), (*shape[:-1], longer), factor.dtype)

    def body(*axes: Axis) -> Expr:
        at = dict(zip(found, zip(axes, first, strict=True), strict=True))
        here = _at(factor, at)
        return here if longer == last else below(here, axes[-1], last)

    return _Image(compute(out, body, origin=c.origin), found, first)


def _compared(e: Expr) -> Expr:
    """`e` with all axes of a comparison of indices on its left."""
    match e:
        case Binary(op, a, b) if op in COMPARE and a.dtype is DType.I64 and axes_of(b):
            whole = affine(sub(a, b))
            return Binary(op, Affine(whole.terms).expr, idx(-whole.constant))
        case _:
            return rebuild(e, _compared)


class _Position(msgspec.Struct, frozen=True):
    """`step` times the sum of `terms`, and the rest of an index."""

    terms: Terms
    step: int
    rest: Affine


def _position(e: Expr, own: frozenset[Axis]) -> _Position | None:
    """`e` as a sum of axes of `own` and the rest, if there is such a sum in it."""
    if e.dtype is not DType.I64:
        return None
    whole = affine(e)
    terms = [(a, step) for a, step in whole.terms if isinstance(a, Axis) and a in own]
    if not terms:
        return None
    step = math.gcd(*(n for _, n in terms))
    rest = tuple(t for t in whole.terms if t not in terms)
    ordered = tuple(sorted(((a, n // step) for a, n in terms), key=lambda t: t[0].name))
    return _Position(ordered, step, Affine(rest, whole.constant))


def _coordinates(factor: Expr, own: frozenset[Axis]) -> tuple[Terms, ...] | None:
    """The sums of axes on which `factor` depends, in the order of dimensions of what it loads; None if an axis is in several."""
    found: dict[Terms, None] = {}

    def look(e: Expr) -> None:
        known = _position(e, own)
        if known is not None:
            found[known.terms] = None
        for x in children(e) if known is None else (x for x, _ in known.rest.terms):
            look(x)

    for x in loads(factor):
        for i in x.index:
            look(i)
    look(factor)
    several = [a for t in found for a, _ in t]
    return tuple(found) if len(several) == len(own) and own.issubset(several) else None


def _span(t: Terms) -> Interval | None:
    """The values of a coordinate; None if it skips some."""
    reach = 0
    for axis, step in sorted(t, key=lambda x: abs(x[1])):
        if abs(step) > reach + 1:
            return None
        reach += abs(step) * (axis.extent - 1)
    return interval(Affine(t).expr)


def _at(e: Expr, at: dict[Terms, tuple[Axis, int]]) -> Expr:
    """`e` at a position: each coordinate is an axis, from its first value on."""
    own = frozenset(a for t in at for a, _ in t)
    known = _position(e, own)
    if known is None:
        return rebuild(e, lambda x: _at(x, at))
    axis, first = at[known.terms]
    rest = tuple((_at(x, at), n) for x, n in known.rest.terms)
    return Affine(((axis, known.step), *rest), known.step * first + known.rest.constant).expr
