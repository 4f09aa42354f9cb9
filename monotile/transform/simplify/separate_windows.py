"""Takes the windows of a pooling apart, one dimension after the other.

    y[i, j] = max over r < R, s < S of x[i + r, j + s]        R * S terms an element
            = max over r < R of z[i + r, j],   z[h, j] = max over s < S of x[h, j + s]        R + S terms

This is for the large windows of spatial pyramids, box filters and morphology, whose neighbours share most terms. What padding adds to a row
of `x` is left out of `z`, and rows that it adds are left out where `z` is read.
"""

import functools
from collections.abc import Iterator
from math import prod

import msgspec

from monotile.analysis.ends import neutral
from monotile.analysis.unconditional import TRUE, both
from monotile.ir.expr import (  # fmt: skip
    Axis,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    axes_of,
    conjuncts,
    idx,
    loads,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement, compute
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body

WORTH = 3  # times the terms that are left


class Window(msgspec.Struct, frozen=True):
    """What a pooling reduces: `value`, which is `load`, converted or not, where `cond` holds."""

    cond: Expr
    value: Load | Cast
    load: Load


def separate_windows(program: Program) -> Program:
    """`program` with reductions over one dimension of a window at a time, where that leaves a third of the terms."""
    names = Names(program)

    def go(body: Body) -> Body:
        return tuple(new for s in body for new in _separated(map_bodies(s, go), names))

    return with_body(program, go(program.body))


def _separated(s: Statement, names: Names) -> Iterator[Statement]:
    found = _window(s) if isinstance(s, Compute) else None
    if isinstance(s, Compute) and found is not None:
        for r in reversed(s.reduce):
            parts = _apart(s, r, found, names)
            if parts is not None:
                yield parts[0]
                yield from _separated(parts[1], names)
                return
    yield s


def _window(c: Compute) -> Window | None:
    if c.combiner not in ("max", "min", "sum") or len(c.reduce) < 2 or c.live:
        return None
    cond, value = TRUE, c.body
    match c.body:
        case Select(when, then, Const() as other) if other == neutral(c.combiner, other.dtype):
            cond, value = when, then
        case _:
            pass
    match value:
        case (Load() as x) | Cast(Load() as x) if not any(loads(i) for i in x.index):
            assert isinstance(value, (Load, Cast))
            return Window(cond, value, x)
        case _:
            return None


def _apart(c: Compute, r: Axis, w: Window, names: Names) -> tuple[Compute, Compute] | None:
    """The reduction over `r` alone, of each row of the image, and that of its results; None where that is not possible, or not worth it."""
    kept = _kept(c, r, w.load)
    if kept is None:
        return None
    inner = [t for t in conjuncts(w.cond) if r in axes_of(t)]
    outer = [t for t in conjuncts(w.cond) if r not in axes_of(t)]
    if any(not axes_of(t) <= {r, *kept.values()} for t in inner):
        return None
    rest = tuple(a for a in c.reduce if a != r)
    walked = {
        d for d, e in enumerate(w.load.index) if axes_of(e) & {*rest}
    }  # by the rest: all rows
    sizes = enumerate(w.load.tensor.shape)
    shape = tuple(kept[d].extent if d in kept else n if d in walked else 1 for d, n in sizes)
    terms = prod(shape) * r.extent + c.out.size * prod(a.extent for a in rest)
    if WORTH * terms > c.out.size * prod(a.extent for a in c.reduce):
        return None
    dtype = w.value.dtype if c.combiner == "sum" else c.out.dtype
    out = Tensor(names.fresh(f"{c.out.name}_rows"), shape, dtype)

    def rows(*i: Expr) -> Expr:
        at = {a.name: i[d] for d, a in kept.items()} | {r.name: i[-1]}
        each = enumerate(w.load.index)
        index = tuple(i[d] if d in walked else substitute(e, at) for d, e in each)
        return _masked(c, w, Load(w.load.tensor, index), [substitute(t, at) for t in inner])

    first = compute(out, rows, reduce=(r.extent,), combiner=c.combiner, origin=c.origin)
    each = enumerate(w.load.index)
    index = tuple(kept[d] if d in kept else e if d in walked else idx(0) for d, e in each)
    body = _masked(c, w, Load(out, index), outer)
    return first, msgspec.structs.replace(c, reduce=rest, body=body)


def _kept(c: Compute, r: Axis, x: Load) -> dict[int, Axis] | None:
    """The dimensions of `x` that results of single rows have too, each with the axis of `c` that it has there: where `r` is, it may be in a
    sum with one. None unless the others are those of further axes of the window."""
    out, others, own = dict[int, Axis](), {*c.reduce} - {r}, 0
    for d, e in enumerate(x.index):
        axes = axes_of(e)
        if axes & others:
            if r in axes:
                return None
        elif len(axes - {r}) > 1 or (r not in axes and axes and not isinstance(e, Axis)):
            return None
        else:
            own += r in axes
            for a in axes - {r}:
                out[d] = a
    named = list(out.values())
    return out if own == 1 and len(named) == len({*named}) else None


def _masked(c: Compute, w: Window, x: Load, terms: list[Expr]) -> Expr:
    assert c.combiner is not None
    value = x if x.dtype == w.value.dtype else Cast(x, w.value.dtype)
    cond = functools.reduce(both, terms, TRUE)
    return value if cond == TRUE else Select(cond, value, neutral(c.combiner, value.dtype))
