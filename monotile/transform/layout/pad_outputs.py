"""Pads the few output columns of a product with a weight to a tile: the channels of an image at a network's end.

Fewer columns than a tile has are computed as separate dot products, although there may be a long sum for each of many rows: a
convolution to three colours, or to one mask. The weight is copied with zero rows added, and the first columns of the product are kept.
"""

import math

import msgspec

from monotile.analysis.contraction import factors
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Tensor,
    axes_of,
    idx,
    map_loads,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement, compute
from monotile.transform.layout.padding import padded_copy
from monotile.transform.names import Names
from monotile.transform.rewrite import with_body

LEAST = 4  # the fewest columns for which a product has tiles
COLUMNS = 8  # of the narrowest instruction
MUCH = 1 << 21  # multiplications from which on padding pays, and rows
ROWS = 1 << 10


def pad_outputs(program: Program) -> Program:
    """`program` with products of few columns and many rows computed in whole tiles."""
    weights = {w.tensor.name for w in program.weights if not w.table}
    names, body, changed = Names(program), list[Statement](), False
    for s in program.body:
        found = _few(s, weights) if isinstance(s, Compute) else None
        if found is None or not isinstance(s, Compute):
            body.append(s)
            continue
        body += _padded(s, *found, names)
        changed = True
    return with_body(program, tuple(body)) if changed else program


def _few(c: Compute, weights: set[str]) -> tuple[Load, int, int] | None:
    """The weight's Load, its dimension for the columns, and that axis of `c`; None if `c` does not have few columns, or has short sums."""
    match c:
        case Compute(combiner="sum", body=Binary("mul"), live=()):
            a, b = factors(c)
        case _:
            return None
    for weight, other in ((b, a), (a, b)):
        if not isinstance(weight, Load) or weight.tensor.name not in weights:
            continue
        columns = [p for p, x in enumerate(c.axes) if x in axes_of(weight)]
        rows = math.prod(x.extent for x in c.axes if x in axes_of(other))
        if len(columns) > 1 or any(c.axes[p] in axes_of(other) for p in columns):
            return None
        at = columns or [
            p for p, x in enumerate(c.axes) if x.extent == 1 and x not in axes_of(other)
        ]
        if not at:
            continue
        few = c.axes[at[-1]]
        where = few if columns else idx(0)
        sized = zip(weight.index, weight.tensor.shape, strict=True)
        dims = [d for d, (i, n) in enumerate(sized) if i == where and n == few.extent]
        terms = math.prod(x.extent for x in c.reduce)
        if dims and few.extent < LEAST and rows >= ROWS and rows * terms >= MUCH:
            return weight, dims[0], at[-1]
    return None


def _padded(c: Compute, weight: Load, d: int, p: int, names: Names) -> tuple[Compute, ...]:
    """The padded weight, the product with it with the columns last, and the kept part as `c`."""
    t = weight.tensor
    wider = padded_copy(t, names.fresh(f"{t.name}_padded"), range(len(t.shape)), {d: COLUMNS})
    rows = (*c.out.shape[:p], *c.out.shape[p + 1 :])
    out = Tensor(names.fresh(f"{c.out.name}_wide"), (*rows, COLUMNS), c.out.dtype)

    def body(*i: Expr) -> Expr:
        own, inner = i[: len(out.shape)], i[len(out.shape) :]
        at = dict(zip((a.name for a in c.axes), (*own[:p], own[-1], *own[p:-1]), strict=True))
        at.update(zip((a.name for a in c.reduce), inner, strict=True))

        def read(x: Load) -> Expr:
            if x.tensor != t:
                return x
            return Load(wider.out, (*x.index[:d], own[-1], *x.index[d + 1 :]))

        return map_loads(substitute(c.body, at), read)

    extents = tuple(a.extent for a in c.reduce)
    wide = compute(out, body, reduce=extents, combiner=c.combiner, origin=c.origin)
    kept: tuple[Axis, ...] = (*c.axes[:p], *c.axes[p + 1 :], c.axes[p])
    return wider, wide, msgspec.structs.replace(c, reduce=(), combiner=None, body=Load(out, kept))
