"""Lists of the terms of each row: a sparse matrix by rows (CSR), built from an index that gives the row of each term.

    first[i] = how many terms rows before i have, for 0 <= i <= rows
    rank[e]  = how many terms are before e, by their rows and within a row by their numbers
    order[k] = the term of rank k

So the terms of row i are order[j] for first[i] <= j < first[i + 1], in their order. A kernel family computes all three at once.
"""

from collections.abc import Callable, Mapping

import msgspec

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, Select, Tensor, cast, idx, substitute
from monotile.ir.program import Compute, compute

Index = Callable[[Expr], Expr]


class RowLists(msgspec.Struct, frozen=True):
    """index: the row of the term `term`."""

    first: Compute
    rank: Compute
    order: Compute
    term: Axis
    index: Expr

    @property
    def rows(self) -> int:
        return self.first.out.size - 1

    @property
    def terms(self) -> int:
        return self.order.out.size

    @property
    def statements(self) -> tuple[Compute, Compute, Compute]:
        """In order."""
        return self.first, self.rank, self.order

    def row(self, term: Expr) -> Expr:
        """The row of a term."""
        return substitute(self.index, {self.term.name: term})


def row_lists(
    index: Index, rows: int, terms: int, name: Callable[[str], str], origin: str = ""
) -> RowLists:
    """The lists of `terms` terms. name: gives a fresh name for a stem."""
    first = Tensor(name("first"), (rows + 1,), DType.I64)
    rank = Tensor(name("rank"), (terms,), DType.I64)
    order = Tensor(name("order"), (terms,), DType.I64)

    def before(i: Expr, r: Expr) -> Expr:
        return cast(Binary("lt", index(r), i), DType.I64)

    def ahead(e: Expr, r: Expr) -> Expr:
        tie = Binary("and", Binary("eq", index(r), index(e)), Binary("lt", r, e))
        return cast(Binary("or", Binary("lt", index(r), index(e)), tie), DType.I64)

    def found(k: Expr, r: Expr) -> Expr:
        return Select(Binary("eq", Load(rank, (r,)), k), r, idx(0))

    first_made, rank_made, order_made = (
        compute(out, body, reduce=(terms,), combiner="sum", origin=origin)
        for out, body in ((first, before), (rank, ahead), (order, found))
    )
    term = Axis("r0", terms)
    return RowLists(first_made, rank_made, order_made, term, index(term))


def lists_of(order: Compute, computes: Mapping[str, Compute]) -> RowLists | None:
    """The lists whose `order` this is; None where it is none. computes: possible operands, by name."""
    match order:
        case Compute(reduce=(_,), body=Select(Binary("eq", Load(rank, (_,)), _), _, _)):
            ranked = computes.get(rank.name)
        case _:
            return None
    match ranked:
        case Compute(reduce=(term,), body=Cast(Binary("or", Binary("lt", index, _), _), _)):
            pass
        case _:
            return None
    for first in computes.values():
        match first.body:
            case Cast(Binary("lt", other, _), _) if other == index and len(first.axes) == 1:
                names = {"first": first.out.name, "rank": rank.name, "order": order.out.name}
                wanted = row_lists(
                    lambda e: substitute(index, {term.name: e}),
                    first.out.size - 1,
                    term.extent,
                    names.__getitem__,
                    order.origin,
                )
                if wanted.statements == (first, ranked, order):
                    return wanted
            case _:
                pass
    return None
