"""Gives what is read in slices side by side an axis of slices.

The gates of a cell come from one product and are read in equal slices: y[i], y[i + w], y[i + 2 w]. In the shape [slices, w] a task can
have the same part of every slice, so that the gates' readers share a stage with the product. This is for single rows, whose tasks can
share nothing but columns; tasks of several rows share these.
"""

from collections import defaultdict
from collections.abc import Iterator

from monotile.analysis.affine import affine
from monotile.analysis.dependence import loads_of
from monotile.analysis.uses import Uses
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, idx, map_loads, mul, substitute
from monotile.ir.program import Compute, Program, Scatter, Statement, statements
from monotile.transform.rewrite import map_exprs, map_program
from monotile.transform.simplify.simplify import simplify_expr


def split_slices(program: Program) -> Program:
    """`program` with such axes where all slices are read, each in the order of its elements."""
    found = dict(_found(program))
    if not found:
        return program
    return map_program(program, lambda s: _split(s, found))


def _found(program: Program) -> Iterator[tuple[str, int]]:
    """The rows that are read so, by name, and the width of their slices."""
    whole = Uses(program).whole
    read: dict[str, set[Expr]] = defaultdict(set)
    rows: dict[str, int] = {}
    for s in statements(program.body):
        if not isinstance(s, (Compute, Scatter)):
            continue
        for x in loads_of(s):
            if x.index:
                read[x.tensor.name].add(x.index[-1])
        if isinstance(s, Compute) and s.axes and s.out.name not in whole:
            rows |= {s.out.name: s.out.size} if s.out.size == s.axes[-1].extent else {}
    for name, size in rows.items():
        width = _width(read[name], size)
        if width is not None:
            yield name, width


def _width(places: set[Expr], size: int) -> int | None:
    """The width of the slices at whose `places` a row of `size` elements is read; None if these are not all of its slices."""
    starts: set[int] = set()
    extents: set[int] = set()
    for place in places:
        found = affine(place)
        match found.terms:
            case ((Axis(_, extent), 1),):
                extents.add(extent)
                starts.add(found.constant)
            case _:
                return None
    if len(extents) != 1 or len(starts) < 2:
        return None
    width = extents.pop()
    return width if starts == set(range(0, size, width)) and size % width == 0 else None


def _split(s: Statement, found: dict[str, int]) -> Statement:
    def read(x: Load) -> Expr:
        width = found.get(x.tensor.name)
        if width is None:
            return x
        place = affine(x.index[-1])
        within = simplify_expr(add(x.index[-1], idx(-place.constant)))
        return Load(_shaped(x.tensor, width), (*x.index[:-1], idx(place.constant // width), within))

    s = map_exprs(s, lambda e: map_loads(e, read))
    if not isinstance(s, Compute) or s.out.name not in found:
        return s
    width, last = found[s.out.name], s.axes[-1]
    out = _shaped(s.out, width)
    axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(out.shape))
    names: dict[str, Expr] = {a.name: b for a, b in zip(s.axes, axes[:-2], strict=False)}
    names[last.name] = add(mul(axes[-2], idx(width)), axes[-1])
    body = simplify_expr(substitute(s.body, names))
    return Compute(out, axes, s.reduce, s.combiner, body, s.origin)


def _shaped(t: Tensor, width: int) -> Tensor:
    return Tensor(t.name, (*t.shape[:-1], t.shape[-1] // width, width), t.dtype)
