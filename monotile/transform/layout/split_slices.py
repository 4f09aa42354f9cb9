"""Gives what is read in slices side by side an axis of slices.

The gates of a cell come from one product and are read in equal slices: y[i], y[i + w], y[i + 2 w]. In the shape [slices, w] a task can
have the same part of every slice, so that the gates' readers share a stage with the product. The queries, keys and values of a layer come from one,
too, as heads: in the shape [slices, heads, n] the rows that a cache gets do. This is for single rows, whose tasks can share nothing but columns; tasks
of several rows share these.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

from monotile.analysis.affine import Affine, affine
from monotile.analysis.dependence import loads_of
from monotile.analysis.uses import Uses
from monotile.ir.expr import (
    Axis,
    Expr,
    Load,
    Tensor,
    add,
    binary,
    idx,
    loads,
    map_loads,
    mul,
    substitute,
)
from monotile.ir.program import Compute, Program, Scatter, Statement, statements
from monotile.transform.rewrite import map_exprs, map_program
from monotile.transform.simplify.simplify import factors_kept, simplify_expr

Shape = tuple[int, ...]  # of a slice


def split_slices(program: Program) -> Program:
    """`program` with such axes where all slices are read, each in the order of its elements."""
    found = _found(program)
    if not found:
        return program
    return map_program(program, lambda s: _split(s, found))


def _found(program: Program) -> dict[str, Shape]:
    """The rows that are read so, by name, and the shape of their slices; and what these are made of element by element and nothing else is."""
    whole = Uses(program).whole
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
    found = {n: shape for n, s in rows.items() if (shape := _slice(read[n], s.out.size))}
    for s in [rows[n] for n in reversed(rows) if n in found]:
        last = s.axes[-1]
        own = {x.tensor.name for x in loads_of(s) if x.index and x.index[-1] == last}
        found |= {n: found[s.out.name] for n in own & rows.keys() if read[n] == {last}}
    return found


def _slice(places: Iterable[Expr], size: int) -> Shape | None:
    """The shape of the slices at whose `places` a row of `size` elements is read, or beside them in a head; None if these are not all of its slices."""
    read = {(a.constant, _run(a)) for a in map(affine, places)}
    shapes = {run for _, run in read}
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None:
        return None
    width, head = math.prod(shape), math.prod(shape[1:])
    begins = {start: (start + head - 1) // width * width for start, _ in read}
    if not all(start - begin < head for start, begin in begins.items()):
        return None
    every = {*range(0, size, width)}
    return shape if len(every) > 1 and {*begins.values()} == every else None


def _run(place: Affine) -> Shape | None:
    """The extents of axes that walk neighbours one after the other; None if they do not."""
    extents: list[int] = []
    for atom, step in sorted(place.terms, key=lambda term: term[1]):
        if not isinstance(atom, Axis) or step != math.prod(extents):
            return None
        extents.append(atom.extent)
    return (*reversed(extents),) if extents else None


def _split(s: Statement, found: dict[str, Shape]) -> Statement:
    def read(x: Load) -> Expr:
        if x.tensor.name not in found:
            return x
        tensor = _shaped(x.tensor, found[x.tensor.name])
        parts = tensor.shape[len(x.index) - 1 :]
        index = list[Expr]()
        for k, n in enumerate(parts):
            here = binary("floordiv", x.index[-1], idx(math.prod(parts[k + 1 :])))
            index.append(binary("mod", here, idx(n)) if k else here)
        return Load(tensor, (*x.index[:-1], *index))

    def reading(e: Expr) -> Expr:
        return (
            simplify_expr(map_loads(e, read))
            if any(x.tensor.name in found for x in loads(e))
            else e
        )

    s = factors_kept(s, reading) or map_exprs(s, reading)
    if not isinstance(s, Compute) or s.out.name not in found:
        return s
    out, before = _shaped(s.out, found[s.out.name]), len(s.axes) - 1
    axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(out.shape))
    whole: Expr = idx(0)
    for a in axes[before:]:
        whole = add(mul(whole, idx(a.extent)), a)
    places: list[Expr] = [*axes[:before], whole]
    names = {a.name: e for a, e in zip(s.axes, places, strict=True)}
    body = simplify_expr(substitute(s.body, names))
    return Compute(out, axes, s.reduce, s.combiner, body, s.origin)


def _shaped(t: Tensor, shape: Shape) -> Tensor:
    return Tensor(t.name, (*t.shape[:-1], t.shape[-1] // math.prod(shape), *shape), t.dtype)
