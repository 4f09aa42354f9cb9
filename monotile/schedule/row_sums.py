"""A scatter-add as a reduction over the list of each row's terms (`analysis/row_lists.py`), as in CSR.

    out[i] = base[i] + sum over first[i] <= j < first[i + 1] of value(order[j])

Element-wise readers become its epilogue, and a base of zeros is not stored. For the terms of a row, the scattered index equals the row,
so look-ups by that index become look-ups by the row (the total of a softmax over the edges of a node).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from monotile.analysis.cost import cost
from monotile.analysis.row_lists import RowLists
from monotile.analysis.unconditional import executed
from monotile.ir.bounds import in_bounds
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
from monotile.ir.intervals import Ranges
from monotile.ir.program import Compute, Scatter, compute
from monotile.kernels.scatter.roles import roles_of
from monotile.transform.simplify.simplify import simplify_expr

CHEAP = 10.0  # operations repeated for each feature of a term


class Scattered(NamedTuple):
    """A Scatter that adds terms to rows. dim: the dimension of its result along which the rows are. term: the axis of the terms. at: the
    row of a term. places: maps the names of its other axes to their positions in the result."""

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
    """Lists, and per-term look-ups by term number permuted into their order: tensors with one element for each term. place: gives the
    permuted tensor of an expression of the term `number`, an index of such an extent; the tensor's values are checked to be in range, unless no
    extent is given. It gives None where the expression's operands do not exist before the lists, or where it has none."""

    lists: RowLists
    place: Callable[[Expr, int | None], Tensor | None]

    @property
    def number(self) -> Expr:
        """The number of the term at `r0` of the lists."""
        r = Axis("r0", self.lists.terms)
        return clamped(Load(self.lists.order.out, (r,)), self.lists.terms)


def clamped(e: Expr, extent: int) -> Expr:
    """`e`, which is in range, clamped so that this is visible: a check would prevent look-ups of several terms from being combined."""
    return binary("max", binary("min", e, idx(extent - 1)), idx(0))


class Made(NamedTuple):
    """What a sum's value can be inlined from: Computes by name, and whether one may be inlined into its reader because it has no other."""

    computes: Mapping[str, Compute]
    closed: Callable[[str], bool]


def row_sum(
    found: Scattered, sorting: Sorted, made: Made, fresh: Callable[[str], str]
) -> tuple[Compute, ...]:
    """The statements that compute `found`. fresh: gives a new name."""
    s, lists = found.s, sorting.lists
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(s.out.shape))
    row, r = axes[found.dim], Axis("r0", lists.terms)
    where: dict[str, Expr] = {a.name: idx(0) for a in s.axes}
    where |= {name: axes[d] for name, d in found.places.items()}
    own = lists.row(sorting.number)

    def at_row(e: Expr) -> Expr:
        """`e` with the term's scattered index replaced by the row."""
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
    """The value of all elements of `t`; None where that is not known."""
    match computes.get(t.name):
        case Compute(combiner=None, body=Const(value)):
            return value
        case Compute(combiner=None, body=Load(source, index)) if not any(map(loads, index)):
            return _filled(source, computes)
        case _:
            return None


def _exact(e: Expr) -> Expr:
    """`e` in the accumulation type, without the rounding before it."""
    wide = e.dtype.compute
    return e.x if isinstance(e, Cast) and e.x.dtype is wide else cast(e, wide)


def _opened(e: Expr, at_row: Callable[[Expr], Expr], made: Made) -> Expr:
    """`e` with its single-use operands inlined, without rounding, where they contain look-ups that `at_row` replaces by the row's."""

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
    """`e` with the look-ups by the number of a term along `r` in the order of the lists. A look-up of the number itself stays: a sum
    over data that is already in order is left to walk all terms (`analysis.ends.gathers`). The permuted tensor has an index for every term, of
    which a look-up under a condition may not need all: such an index is checked where it is used, and stays if it cannot always be computed."""
    always = {*executed(e)}

    def place(i: Expr, extent: int, *, needed: bool) -> Expr:
        alone = loads(i) and axes_of(i) == frozenset((r,)) and i != sorting.number
        computable = needed or all(in_bounds(x, Ranges()) for x in loads(i))
        there = sorting.place(i, extent if needed else None) if alone and computable else None
        if there is None:
            return go(i)
        found = Load(there, (r,))
        return clamped(found, extent) if needed else found

    def go(x: Expr) -> Expr:
        if isinstance(x, Load):
            pairs = zip(x.index, x.tensor.shape, strict=True)
            return Load(x.tensor, tuple(place(i, n, needed=x in always) for i, n in pairs))
        return rebuild(x, go)

    return go(e)


def in_order(e: Expr, lists: RowLists, name: str) -> Compute:
    """`e` of the terms along `r0`, in the order of the lists, as a tensor."""
    k = Axis("i0", lists.terms)
    out = Tensor(name, (lists.terms,), e.dtype)
    return Compute(out, (k,), (), None, substitute(e, {"r0": k}), lists.order.origin)


def identity(extent: int, name: str) -> Compute:
    """The tensor of numbers 0, 1, ...: a look-up of it gives the index, which is checked."""
    return compute(Tensor(name, (extent,), DType.I64), lambda i: i)
