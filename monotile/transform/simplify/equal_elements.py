"""Computes one of equal elements: of what was expanded before it was computed with.

    y[b, i] = sum over k of p[i, k] * w[k]        does not depend on b:   z[b, i] = f(y[b, i]) = f(y[0, i])

Positions, queries and latents that a model has learned are often repeated for each sequence first, and projected or normalised then.
The first of them is read, and cropping leaves the rest of `y` out. The factors of a product of each sequence's own stay as they are: one
that lacked the axis would no longer be a batch of it.
"""

from collections.abc import Mapping, Sequence

from monotile.analysis.contraction import contraction
from monotile.ir.expr import Expr, Load, axes_of, idx, loads, map_loads
from monotile.ir.program import Compute, Program, Scatter, statements
from monotile.transform.rewrite import map_exprs, map_program
from monotile.transform.simplify.crop import crop

Equal = Mapping[str, frozenset[int]]  # by name, dimensions along which all elements are equal


def share_equal(program: Program) -> Program:
    """`program` with one of equal elements."""
    found = _reading(program)
    return program if found is program else crop(found)


def _reading(program: Program) -> Program:
    """`program` reading the first of equal elements."""
    equal: dict[str, frozenset[int]] = {}
    readers = [s for s in statements(program.body) if isinstance(s, (Compute, Scatter))]
    for s in readers:
        if isinstance(s, Compute) and not s.live:
            own = axes_of(_reading_first(s.body, equal))
            found = frozenset(d for d, a in enumerate(s.axes) if a.extent > 1 and a not in own)
            equal |= {s.out.name: found} if found else {}
    batched = _batched(readers, equal)
    equal = {n: dims - batched.get(n, frozenset()) for n, dims in equal.items()}
    if not any(equal.values()):
        return program
    return map_program(program, lambda s: map_exprs(s, lambda e: _reading_first(e, equal)))


def _reading_first(e: Expr, equal: Equal) -> Expr:
    return map_loads(e, lambda x: _first(x, equal))


def _first(x: Load, equal: Equal) -> Load:
    dims = equal.get(x.tensor.name)
    if not dims:
        return x
    return Load(x.tensor, tuple(idx(0) if d in dims else i for d, i in enumerate(x.index)))


def _batched(readers: Sequence[Compute | Scatter], equal: Equal) -> Mapping[str, frozenset[int]]:
    """Dimensions along which a product reads another element of its other factor for each."""
    out: dict[str, frozenset[int]] = {}
    for s in readers:
        found = contraction(s) if isinstance(s, Compute) else None
        if found is None:
            continue
        for side, other in ((found.left, found.right), (found.right, found.left)):
            walked = axes_of(_reading_first(other, equal))
            for x in loads(side):
                dims = equal.get(x.tensor.name, frozenset())
                kept = frozenset(d for d in dims if axes_of(x.index[d]) & walked)
                out[x.tensor.name] = out.get(x.tensor.name, frozenset()) | kept
    return out
