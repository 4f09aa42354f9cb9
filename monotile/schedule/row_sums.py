"""A scattered sum as a reduction over the list of each row's terms (`analysis/row_lists.py`).

    out[i] = base[i] + sum over first[i] <= j < first[i + 1] of value(order[j])

What follows it element by element is its epilogue then, and a base of zeros is no tensor. At a term of its row the term's index is the row, so
what was looked up by it is the row's own (the total of a softmax over the edges of a node).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from monotile.analysis.cost import cost
from monotile.analysis.row_lists import RowLists
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    axes_of,
    binary,
    cast,
    const,
    idx,
    loads,
    rebuild,
    substitute,
)
from monotile.ir.program import Compute, Scatter, compute
from monotile.kernels.scatter.roles import roles_of
from monotile.transform.simplify.simplify import simplify_expr

CHEAP = 10.0  # operations of what is done again for each feature of a term


class Scattered(NamedTuple):
    """A Scatter that adds terms to rows. dim: of its result, along which the rows are. term: the axis of the terms. at: the row of one.
    places: by its other axes' names, where they are in the result."""

    s: Scatter
    dim: int
    term: Axis
    at: Expr
    places: Mapping[str, int]

    @property
    def rows(self) -> int:
        return self.s.out.shape[self.dim]

    @property
    def key(self) -> tuple[Expr, int]:
        """Equal for those that share their lists."""
        return substitute(self.at, {self.term.name: Axis("e", self.term.extent)}), self.rows


def scattered(s: Scatter) -> Scattered | None:
    """`s` as such a sum; None where it is none."""
    roles = roles_of(s) if s.combiner == "sum" else None
    if roles is None or len(roles.terms) != 1 or len(roles.scattered) != 1 or roles.outer:
        return None
    (term,), (dim,) = (s.axes[p] for p in roles.terms), roles.scattered
    if axes_of(s.index[dim]) != frozenset((term,)):
        return None
    places: dict[str, int] = {}
    for d, i in enumerate(s.index):
        if d == dim or (s.out.shape[d] == 1 and i == idx(0)):
            continue
        if not isinstance(i, Axis) or i.extent != s.out.shape[d] or i.name in places:
            return None
        places[i.name] = d
    if any(a != term and a.name not in places and a.extent != 1 for a in s.axes):
        return None
    return Scattered(s, dim, term, s.index[dim], places)


class Sorted(NamedTuple):
    """Lists, and what a term of them looks up by its number alone, in their order: a tensor with an element for each term. place: of an
    expression of the term `number`, an index of such an extent; what the tensor has is in range. None where what it is made of is not there
    before the lists."""

    lists: RowLists
    place: Callable[[Expr, int], Tensor | None]

    @property
    def number(self) -> Expr:
        """The term at `r0` of the lists."""
        r = Axis("r0", self.lists.terms)
        return clamped(Load(self.lists.order.out, (r,)), self.lists.terms)


def clamped(e: Expr, extent: int) -> Expr:
    """`e`, which is in range, so that this is seen: a check would keep the look-ups of several terms apart."""
    return binary("max", binary("min", e, idx(extent - 1)), idx(0))


class Made(NamedTuple):
    """What the value of a sum may be made of: Computes by name, and whether one of them may be computed where it is read: nothing else reads it."""

    computes: Mapping[str, Compute]
    closed: Callable[[str], bool]


def row_sum(
    found: Scattered, sorting: Sorted, made: Made, fresh: Callable[[str], str]
) -> tuple[Compute, ...]:
    """The statements that make `found`. fresh: a new name."""
    s, lists = found.s, sorting.lists
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(s.out.shape))
    row, r = axes[found.dim], Axis("r0", lists.terms)
    where: dict[str, Expr] = {a.name: idx(0) for a in s.axes}
    where |= {name: axes[d] for name, d in found.places.items()}
    own = lists.row(sorting.number)

    def at_row(e: Expr) -> Expr:
        """`e`, in which the term's index is the row."""
        return row if e == own else rebuild(e, at_row)

    value = substitute(_exact(s.value), {**where, found.term.name: sorting.number})
    value = at_row(_opened(value, at_row, made))
    value = _in_order(simplify_expr(value), r, sorting)
    begin, end = (Load(lists.first.out, (i,)) for i in (row, add(row, idx(1))))
    inside = Binary("and", Binary("ge", r, begin), Binary("lt", r, end))
    body = Select(inside, value, const(0, value.dtype))
    if _filled(s.base, made.computes) == 0:
        return (Compute(s.out, axes, (r,), "sum", body, s.origin),)
    total = Tensor(fresh(f"{s.out.name}_sum"), s.out.shape, value.dtype)
    both = Binary("add", cast(Load(s.base, axes), value.dtype), Load(total, axes))
    return (
        Compute(total, axes, (r,), "sum", body, s.origin),
        Compute(s.out, axes, (), None, both, s.origin),
    )


def _filled(t: Tensor, computes: Mapping[str, Compute]) -> object:
    """What all elements of `t` are; None where that is not known."""
    match computes.get(t.name):
        case Compute(combiner=None, body=Const(value)):
            return value
        case Compute(combiner=None, body=Load(source, index)) if not any(map(loads, index)):
            return _filled(source, computes)
        case _:
            return None


def _exact(e: Expr) -> Expr:
    """`e` in the type in which it is added, not rounded before."""
    wide = e.dtype.compute
    return e.x if isinstance(e, Cast) and e.x.dtype is wide else cast(e, wide)


def _opened(e: Expr, at_row: Callable[[Expr], Expr], made: Made) -> Expr:
    """`e` with what nobody else reads in place, not rounded, where it looks up what `at_row` finds to be the row's."""

    def inner(x: Expr, dtype: DType) -> Expr | None:
        c = made.computes.get(x.tensor.name) if isinstance(x, Load) else None
        if not isinstance(x, Load) or c is None or c.combiner is not None or c.live:
            return None
        if c.body.dtype is not dtype or not made.closed(x.tensor.name):
            return None
        body = substitute(c.body, {a.name: i for a, i in zip(c.axes, x.index, strict=True)})
        found = at_row(body)
        return found if found is not body and cost(simplify_expr(found)) <= CHEAP else None

    def go(x: Expr) -> Expr:
        found = inner(x.x if isinstance(x, Cast) else x, x.dtype)
        return rebuild(x, go) if found is None else found

    return go(e)


def _in_order(e: Expr, r: Axis, sorting: Sorted) -> Expr:
    """`e`, where the places that a term along `r` looks up by its number alone are in the order of the lists. What is looked up at its number
    itself stays: a sum over what lies in order is left to walk all terms (`analysis.ends.gathers`)."""

    def place(i: Expr, extent: int) -> Expr:
        alone = loads(i) and axes_of(i) == frozenset((r,)) and i != sorting.number
        there = sorting.place(i, extent) if alone else None
        return go(i) if there is None else clamped(Load(there, (r,)), extent)

    def go(x: Expr) -> Expr:
        if isinstance(x, Load):
            return Load(x.tensor, tuple(map(place, x.index, x.tensor.shape)))
        return rebuild(x, go)

    return go(e)


def in_order(e: Expr, lists: RowLists, name: str) -> Compute:
    """`e`, of the terms along `r0` in the order of the lists, as a tensor."""
    k = Axis("i0", lists.terms)
    out = Tensor(name, (lists.terms,), e.dtype)
    return Compute(out, (k,), (), None, substitute(e, {"r0": k}), lists.order.origin)


def identity(extent: int, name: str) -> Compute:
    """Of which a look-up gives the index, which is checked."""
    return compute(Tensor(name, (extent,), DType.I64), lambda i: i)
