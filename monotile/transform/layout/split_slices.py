"""Splits a dimension that is read in equal adjacent slices into [slices, elements].

The gates of a cell come from one product and are read in equal slices: y[i], y[i + w], y[i + 2 w]. In the shape [slices, w] a task can
have the same part of every slice, so that the gates' readers share a stage with the product. The queries, keys and values of a layer
come from one product too, as heads: in the shape [slices, heads, n] the rows written to a cache share its stage as well. Where queries
have more heads than keys, there is a product for either. This is for single rows, whose tasks can share nothing but columns; tasks of
several rows share these.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from monotile.analysis.affine import Affine, affine
from monotile.analysis.dependence import loads_of
from monotile.analysis.uses import Uses
from monotile.errors import VerificationError
from monotile.ir.expr import (
    Axis,
    Expr,
    Load,
    Tensor,
    add,
    idx,
    loads,
    map_loads,
    substitute,
)
from monotile.ir.intervals import interval
from monotile.ir.program import Compute, Program, Scatter, Statement, statements
from monotile.ir.verify import verify
from monotile.transform.layout.parts import apart, joined
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_exprs, with_body
from monotile.transform.simplify.simplify import factors_kept, simplify_expr

Shape = tuple[int, ...]  # of a slice: heads, and elements of one; or elements


class Slices(msgspec.Struct, frozen=True):
    """Adjacent slices of equal shape in a row, from element `begin` on: `count` of them, reshaped to [..., count, *shape]."""

    begin: int
    count: int
    shape: Shape
    name: str = ""

    @property
    def width(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        return self.begin + self.count * self.width

    def of(self, t: Tensor) -> Tensor:
        """The reshaped part of the row `t`."""
        return Tensor(self.name, (*t.shape[:-1], self.count, *self.shape), t.dtype)


Found = Mapping[str, Sequence[Slices]]  # by the row's name
Simplified = Callable[[Expr], Expr]


def split_slices(program: Program) -> Program:
    """`program` with such axes where all slices are read, each in the order of its elements."""
    found = _found(program)
    if not found:
        return program
    if any(len(each) > 1 for each in found.values()) and not _within(program, found):
        found = {
            n: each for n, each in found.items() if len(each) == 1 or _within(program, {n: each})
        }
    return _split(program, found, simplify_expr) if found else program


def _within(program: Program, found: Found) -> bool:
    """Whether all other reads are within the same slices, given the conditions around them: reads of other slices are in another product
    then. Runs before simplification, which assumes that indices are in range."""
    try:
        verify(_split(program, found, lambda e: e))
    except VerificationError:
        return False
    return True


def _found(program: Program) -> Found:
    """The rows that are read in slices, and their single-use element-wise operands."""
    whole, names = Uses(program).whole, Names(program)
    read: dict[str, set[Expr]] = defaultdict(set)
    rows: dict[str, Compute] = {}
    for s in statements(program.body):
        if not isinstance(s, (Compute, Scatter)):
            continue
        for x in loads_of(s):
            if x.index:
                read[x.tensor.name].add(x.index[-1])
        if isinstance(s, Compute) and s.axes and s.out.name not in whole:
            rows |= {s.out.name: s} if s.out.size == s.axes[-1].extent else {}
    found = {n: each for n, s in rows.items() if (each := _slices(read[n], s.out.size))}
    for s in [rows[n] for n in reversed(rows) if n in found]:
        last = s.axes[-1]
        own = {x.tensor.name for x in loads_of(s) if x.index and x.index[-1] == last}
        found |= {n: found[s.out.name] for n in own & rows.keys() if read[n] == {last}}
    return {n: _named(n, each, names) for n, each in found.items()}


def _named(name: str, each: Sequence[Slices], names: Names) -> Sequence[Slices]:
    first, *more = each
    given = (msgspec.structs.replace(s, name=names.fresh(name)) for s in more)
    return (msgspec.structs.replace(first, name=name), *given)


def _slices(places: Iterable[Expr], size: int) -> Sequence[Slices] | None:
    """The slices at whose `places` a row of `size` elements is read, or next to them in a head; None if they do not cover the row, or
    there is only one."""
    read = _read(places)
    if len({run[1:] for _, run in read}) != 1:
        return _unequal(places, size)
    rest = next(iter(read))[1][1:]
    head = math.prod(rest)
    exact = sorted((start, run) for start, run in read if start % head == 0)
    near = all(any(abs(start - s) < head and run == r for s, r in exact) for start, run in read)
    ends = list(itertools.accumulate(math.prod(run) for _, run in exact))
    if not near or len(exact) < 2 or [start for start, _ in exact] != [0, *ends[:-1]] or ends[-1] != size:  # fmt: skip
        return None
    if not rest and len({run for _, run in read}) > 1:
        return _unequal(places, size)
    return (*_joined(exact),)


def _unequal(places: Iterable[Expr], size: int) -> Sequence[Slices] | None:
    """Slices of any widths, if each read walks just one of them."""
    found = {(a.constant, math.prod(_run(a) or ())) for a in map(affine, places)}
    ends = list(itertools.accumulate(width for _, width in sorted(found)))
    if len(found) < 2 or [begin for begin, _ in sorted(found)] != [0, *ends[:-1]] or ends[-1] != size:  # fmt: skip
        return None
    return [Slices(begin, 1, (width,)) for begin, width in sorted(found)]


def _read(places: Iterable[Expr]) -> set[tuple[int, Shape]]:
    """The beginning of each read, and the shape that it walks, possibly of one head; nothing where a read walks no such shape."""
    found = {(a.constant, _run(a)) for a in map(affine, places)}
    heads = {run[1:] for _, run in found if run is not None and len(run) > 1}
    read = {(start, (1, *run) if {run} == heads else run) for start, run in found if run}
    return read if len(read) == len(found) else set()


def _joined(slices: Iterable[tuple[int, Shape]]) -> Iterator[Slices]:
    """Merges adjacent slices of equal shape."""
    for shape, each in itertools.groupby(slices, key=lambda s: s[1]):
        first, *more = (start for start, _ in each)
        yield Slices(first, 1 + len(more), shape)


def _run(place: Affine) -> Shape | None:
    """How many heads axes walk, one after the other, and their elements, within which the rest of the index falls; or the extent that
    one axis walks. None if they do not."""
    terms = sorted(place.terms, key=lambda term: -term[1])
    if len(terms) == 1:
        ((atom, step),) = terms
        return (atom.extent,) if isinstance(atom, Axis) and step == 1 else None
    for count in range(len(terms) - 1, 0, -1):
        extents, head = _heads(terms[:count]), terms[count - 1][1]
        inside = interval(Affine(tuple(terms[count:])).expr)
        if extents and inside is not None and 0 <= inside.lo and inside.hi < head:
            return (*extents, head)
    return None


def _heads(terms: Sequence[tuple[Expr, int]]) -> Shape | None:
    """The extents of axes whose steps are multiples of the last one's extent."""
    extents: list[int] = []
    for atom, step in reversed(terms):
        if not isinstance(atom, Axis) or step != terms[-1][1] * math.prod(extents):
            return None
        extents.append(atom.extent)
    return (*reversed(extents),)


def _split(program: Program, found: Found, simplified: Simplified) -> Program:
    """`program` with one statement for all slices of one shape of each row."""

    def go(body: Body) -> Body:
        return tuple(new for s in body for new in _statements(map_bodies(s, go), found, simplified))  # fmt: skip

    return with_body(program, go(program.body))


def _statements(s: Statement, found: Found, simplified: Simplified) -> Iterator[Statement]:
    if not isinstance(s, Compute) or s.out.name not in found:
        yield _reading(s, found, simplified)
        return
    *axes, last = s.axes
    for each in found[s.out.name]:
        out = each.of(s.out)
        new = tuple(Axis(f"i{k}", n) for k, n in enumerate(out.shape))
        place = joined(new[len(axes) :], out.shape[len(axes) :])
        places = {a.name: e for a, e in zip(axes, new, strict=False)}
        body = substitute(s.body, places | {last.name: add(place, idx(each.begin))})
        made = Compute(out, new, s.reduce, s.combiner, simplified(body), s.origin)
        yield _reading(made, found, simplified)


def _reading(s: Statement, found: Found, simplified: Simplified) -> Statement:
    """`s` with loads of split rows adapted."""

    def reading(e: Expr) -> Expr:
        if not any(x.tensor.name in found for x in loads(e)):
            return e
        return simplified(map_loads(e, lambda x: _load(x, found)))

    return factors_kept(s, reading) or map_exprs(s, reading)


def _load(x: Load, found: Found) -> Load:
    if x.tensor.name not in found:
        return x
    place = affine(x.index[-1])
    each = _slices_at(place, found[x.tensor.name])
    here = (place + Affine((), -each.begin)).expr
    return Load(each.of(x.tensor), (*x.index[:-1], *apart(here, (each.count, *each.shape))))


def _slices_at(place: Affine, slices: Sequence[Slices]) -> Slices:
    """The slices that contain an index, or that have it next to their index in a head."""
    head = math.prod(slices[0].shape[1:])
    return next(s for s in slices if place.constant < s.end - s.width + head)
