"""Products with weights that store a few values of each group of neighbours, with their positions (N:M, nmSPARSE, MLSys'23).

    w[n, g * M + i] = sum over j of where(at[n, g, j] == i, value[n, g, j], 0)

With few rows, the other operand is gathered at these positions, so that nothing is multiplied by zero:

    sum over k of x[k] * w[n, k] = sum over g, j of x[g * M + at[n, g, j]] * value[n, g, j]

So it is with many rows where vectors of columns share their positions (vector-wise N:M). For other products of many rows the short sum
over j is written out: an element of `w` is then computed where it is read, as other codes are (`inline_decoding.py`). So it is for any
number of rows where tensor cores take such weights (2:4) in their stored form (`analysis.two_of_four`): loads are then marked as
ascending, since tensor cores require each group's positions to ascend.
"""

import math
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.chosen import chosen, opened
from monotile.analysis.contraction import contraction, factors, grain
from monotile.analysis.states import steady_weights
from monotile.analysis.two_of_four import two_of_four
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    add,
    axes_of,
    binary,
    cast,
    const,
    idx,
    loads,
    map_loads,
    mul,
    rebuild,
    substitute,
    walk,
)
from monotile.ir.program import Compute, Program, Statement, statements
from monotile.transform.rewrite import map_program
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.simplify import simplify_expr

FEW = 8  # rows that gather
VECTOR = 32  # columns with the same positions from which on many rows gather
MOST_KEPT = 4  # values of a group that are written out


class OneHot(NamedTuple):
    """`s`, a sum over `j`, whose term is `value` where the axis `i` of `s` is `at`, and 0 elsewhere."""

    s: Compute
    i: Axis
    j: Axis
    at: Expr
    value: Expr


def gather_kept(program: Program, ascending: Set[str] = frozenset()) -> Program:
    """`program` with such products; the same object if there are none. ascending: weights' parts of which each byte holds two pairs of
    2-bit numbers that ascend, where tensor cores take such."""
    known = {w.tensor for w in program.weights if ascending >= set(w.parts)}
    hot = {h.s.out.name: _marked(h, known) for h in _one_hot(program)}
    if not hot:
        return program

    read: set[str] = set()

    def product(s: Statement) -> Statement:
        if not isinstance(s, Compute):
            return s
        new = _gathered(s, hot)
        read.update(x.tensor.name for x in loads(new.body))
        return new

    program = map_program(program, product)

    def written_out(s: Statement) -> Statement:
        h = hot.get(s.out.name) if isinstance(s, Compute) else None
        few = h is not None and h.s.out.name in read and h.j.extent <= MOST_KEPT
        return _sum_of_terms(h) if h is not None and few else s

    return eliminate_dead_code(map_program(program, written_out))


def ascending_in(program: Program) -> frozenset[str]:
    """The weights' parts whose numbers the Program marks as ascending."""
    said = {
        x.tensor
        for s in statements(program.body)
        if isinstance(s, Compute)
        for e in walk(s.body)
        if isinstance(e, Unary) and e.op == "ascends"
        for x in loads(e)
    }
    return frozenset(p for w in program.weights if w.tensor in said for p in w.parts)


def _marked(h: OneHot, known: Set[Tensor]) -> OneHot:
    """`h`, with loads of numbers known to ascend marked."""
    at = map_loads(h.at, lambda x: Unary("ascends", x) if x.tensor in known else x)
    return h._replace(at=at)


def _one_hot(program: Program) -> Iterator[OneHot]:
    """The one-hot sums of weights alone that never change."""
    steady, made = steady_weights(program), dict[str, Compute]()
    comparing = set[str]()  # the tensors computed with a comparison
    for s in statements(program.body):
        if not isinstance(s, Compute):
            continue
        names = {x.tensor.name for x in loads(s.body)}
        if not names <= steady | made.keys():
            continue
        compares = bool(names & comparing) or any(
            isinstance(e, Binary) and e.op == "eq" for e in walk(s.body)
        )
        if s.combiner is None:
            made[s.out.name] = s
            if compares:
                comparing.add(s.out.name)
            continue
        hot = compares and s.combiner == "sum" and len(s.reduce) == 1
        if hot and (found := _matched(s, simplify_expr(opened(s.body, made)))):
            yield found


def _matched(s: Compute, body: Expr) -> OneHot | None:
    for found in chosen(body, s.axes):
        value = simplify_expr(found.value)
        if found.axis not in axes_of(value):
            return OneHot(s, found.axis, s.reduce[0], found.at, value)
    return None


def _gathered(c: Compute, hot: Mapping[str, OneHot]) -> Compute:
    """`c` as a sum over the stored values, if it is a product of few rows."""
    found = contraction(c)
    if found is None or len(c.reduce) != 1:
        return c
    for y in factors(c):
        h = hot.get(y.tensor.name) if isinstance(y, Load) else None
        if h is None or not isinstance(y, Load):
            continue
        own = axes_of(y)
        rows = math.prod(a.extent for a in c.axes if a not in own)
        g = _groups(c, y, h)
        few = rows <= FEW or _together(c, y, h) >= VECTOR
        if g is not None and few and not _for_tensor_cores(c, y, h):
            return _sum_of_kept(c, y, h, g)
    return c


def _together(c: Compute, y: Load, h: OneHot) -> int:
    """Neighbours along each axis of the product `c` for which the factor `y` has the same positions."""
    at: dict[str, Expr] = {a.name: i for a, i in zip(h.s.axes, y.index, strict=True)}
    where = substitute(h.at, at)
    return min((grain(where, a) for a in c.axes if a in axes_of(where)), default=1)


def _for_tensor_cores(c: Compute, y: Load, h: OneHot) -> bool:
    """Whether tensor cores take the factor `y` of the product `c` in its stored form."""
    at = {a.name: i for a, i in zip(h.s.axes, y.index, strict=True)}
    factor = simplify_expr(substitute(_sum_of_terms(h).body, at))
    halves = all(x.dtype.is_float and x.dtype.itemsize == 2 for x in factors(c))
    rows = not {*c.axes} <= axes_of(y)
    return halves and rows and two_of_four(factor, c.reduce[0]) is not None


def _groups(c: Compute, y: Load, h: OneHot) -> int | None:
    """The dimension of `h` along which c reads groups, one after the other: k = group * M + i."""
    (k,) = c.reduce
    group, inner = Axis("group", k.extent // h.i.extent), Axis("inner", h.i.extent)
    at: dict[str, Expr] = {k.name: add(mul(group, idx(h.i.extent)), inner)}
    index = [affine(substitute(e, at)).expr for e in y.index]
    place = h.s.axes.index(h.i)
    found = [d for d, e in enumerate(index) if e == group]
    others = [e for d, e in enumerate(index) if d != place and d not in found]
    fits = k.extent % h.i.extent == 0 and index[place] == inner and len(found) == 1
    return found[0] if fits and not any(axes_of(e) & {group, inner} for e in others) else None


def _sum_of_kept(c: Compute, y: Load, h: OneHot, groups: int) -> Compute:
    """Over one axis, of all groups' values."""
    (k,) = c.reduce
    size, kept = h.i.extent, h.j.extent
    r = Axis(k.name, k.extent // size * kept)
    group, j = binary("floordiv", r, idx(kept)), binary("mod", r, idx(kept))
    at: dict[str, Expr] = {
        a.name: group if d == groups else e
        for d, (a, e) in enumerate(zip(h.s.axes, y.index, strict=True))
        if a != h.i
    }
    at[h.j.name] = j
    place = cast(substitute(h.at, at), DType.I64)
    inside = Binary("and", Binary("ge", place, idx(0)), Binary("lt", place, idx(size)))
    value = Select(inside, substitute(h.value, at), const(0, h.value.dtype))
    where = binary("max", binary("min", place, idx(size - 1)), idx(0))
    moved: dict[str, Expr] = {k.name: add(mul(group, idx(size)), where)}
    put = cast(value, y.dtype)
    body = _replaced(c.body, y, put, moved)
    return msgspec.structs.replace(c, reduce=(r,), body=simplify_expr(body))


def _replaced(e: Expr, y: Load, put: Expr, moved: Mapping[str, Expr]) -> Expr:
    """`e` with `put` for `y`, and other axes elsewhere."""
    if e == y:
        return put
    if isinstance(e, Load | Axis):
        return substitute(e, dict(moved))
    return rebuild(e, lambda x: _replaced(x, y, put, moved))


def _sum_of_terms(h: OneHot) -> Compute:
    """`h` with its terms written out."""
    wide = h.s.body.dtype
    total: Expr | None = None
    for n in range(h.j.extent):
        at: dict[str, Expr] = {h.j.name: idx(n)}
        here = Binary("eq", cast(substitute(h.at, at), DType.I64), h.i)
        value = cast(substitute(h.value, at), wide)
        term = Select(here, value, const(0, wide))
        total = term if total is None else Binary("add", total, term)
    assert total is not None
    body = cast(total, h.s.out.dtype)
    return Compute(h.s.out, h.s.axes, (), None, body, h.s.origin)
