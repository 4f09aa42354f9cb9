"""Turns scatter-adds that share an index into sums over lists of each row's terms (as in CSR), where the cost model predicts a faster
schedule.

Without this, every scatter-add (`kernels/scatter`) finds its terms anew: each worker reads all indices. Here the lists are made once.
Lists that a network or a loop uses only once gain nothing.
"""

from collections.abc import Iterator, Sequence

from monotile.analysis.row_lists import row_lists
from monotile.analysis.states import old_values
from monotile.analysis.uses import Uses, mentions
from monotile.ir.expr import Expr, Load, Tensor, loads, substitute
from monotile.ir.program import (
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    defined,
    statements,
)
from monotile.kernels.draft import Context
from monotile.schedule.row_sums import (
    Made,
    Scattered,
    Sorted,
    identity,
    in_order,
    row_sum,
    scattered,
)
from monotile.schedule.tree import faster
from monotile.targets.target import Target
from monotile.transform.fusion.inline import inline_chosen
from monotile.transform.layout.reindex import reindex_reductions
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body
from monotile.transform.simplify.dce import eliminate_dead_code

LEAST_USES = 2  # of lists
Key = tuple[Expr, int]


def list_rows(program: Program, _: Target, context: Context) -> Program:
    """`program` with lists of rows for its scatter-adds; all that share an index are rewritten together."""
    for key in _shared(program):
        found = _shared(program)[key]  # an earlier rewrite may have changed their values
        listed = with_lists(program, key, found)
        program = faster("list rows", program, listed, [x.s for x in found], context)
    return program


def _carried(program: Program) -> frozenset[str]:
    """The tensors that loops carry, as an iteration begins: they may be updated in place in it."""
    found = (s for s in statements(program.body) if isinstance(s, Loop))
    return frozenset(c.param.name for s in found for c in s.carried)


def _shared(program: Program) -> dict[Key, list[Scattered]]:
    """The scatter-adds whose lists are used several times, by index, in the order of the Program."""
    outside = _given(program) | {t.name for s in program.body for t in defined(s)}
    computed = {s.out.name for s in statements(program.body) if isinstance(s, Compute)}
    kept = {t.name for t in program.outputs[len(program.results) :]}
    found: dict[Key, list[Scattered]] = {}
    times: dict[Key, int] = {}
    for s, often in _scatters(program.body):
        x = scattered(s)
        if x is None or s.base.name not in computed or s.out.name in kept:
            continue
        if {y.tensor.name for y in loads(x.at)} <= outside:
            found.setdefault(x.key, []).append(x)
            times[x.key] = times.get(x.key, 0) + often
    return {key: every for key, every in found.items() if times[key] >= LEAST_USES}


def _scatters(body: Body, often: int = 1) -> Iterator[tuple[Scatter, int]]:
    """All Scatters, each with the number of times that loops run it."""
    for s in body:
        match s:
            case Scatter():
                yield s, often
            case Loop():
                yield from _scatters(s.body, often * s.axis.extent)
            case _:
                pass


def with_lists(program: Program, key: Key, found: Sequence[Scattered]) -> Program:
    """`program` with the scatter-adds `found`, which share the index `key`, rewritten as sums over lists."""
    return _Lists(program, key, found).rewritten()


def _given(program: Program) -> frozenset[str]:
    """The inputs and weights that are never written."""
    held = {t.name for t in program.inputs} | {w.tensor.name for w in program.weights}
    return frozenset(held) - old_values(program) - {*program.watched}


class _Lists:
    """sums: maps the name of a result to its sum. ahead: identities, by extent. ordered: maps an expression, and its extent if it is checked, to its
    tensor in the order of the lists."""

    def __init__(self, program: Program, key: Key, found: Sequence[Scattered]) -> None:
        self.program, self.names = program, Names(program)
        self.sums = {x.s.out.name: x for x in found}
        self.given, uses = _given(program), mentions(program)
        computes = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
        moving = old_values(program) | _carried(program)

        def closed(name: str) -> bool:
            read = {x.tensor.name for x in loads(computes[name].body)}
            return uses[name] == 1 and not read & moving

        self.made = Made(computes, closed)
        self.ahead: dict[int, Compute] = {}
        self.ordered: dict[tuple[Expr, int | None], Compute] = {}
        index, rows = key
        first = found[0]

        def fresh(stem: str) -> str:
            return self.names.fresh(f"{first.s.out.name}_{stem}")

        self.lists = row_lists(
            lambda e: substitute(index, {"e": e}), rows, first.term.extent, fresh, first.s.origin
        )

    def rewritten(self) -> Program:
        """The Program with lists made as early as possible, and the element-wise readers of the sums as their epilogues."""
        body = [y for s in self.program.body for y in self._statement(s)]
        needed = {x.tensor.name for x in loads(self.lists.index)}
        made = [k for k, s in enumerate(body) if needed & {t.name for t in defined(s)}]
        place = max(made, default=-1) + 1
        lists = (*self.ahead.values(), *self.lists.statements, *self.ordered.values())
        body[place:place] = lists
        return _tidied(with_body(self.program, tuple(body)), frozenset(self.sums))

    def _statement(self, s: Statement) -> tuple[Statement, ...]:
        if isinstance(s, Scatter) and s.out.name in self.sums:
            sorting = Sorted(self.lists, self._place)
            found = self.sums[s.out.name]
            return row_sum(found, sorting, self.made, self.names.fresh)
        return (map_bodies(s, lambda inner: tuple(y for x in inner for y in self._statement(x))),)

    def _place(self, e: Expr, extent: int | None) -> Tensor | None:
        known = {x.tensor.name for x in loads(e)} - {self.lists.order.out.name}
        if not known or not known <= self.given:
            return None
        if (e, extent) not in self.ordered:
            name = self.names.fresh(f"{min(known)}_in_order")
            found = e if extent is None else Load(self._identity(extent), (e,))
            self.ordered[e, extent] = in_order(found, self.lists, name)
        return self.ordered[e, extent].out

    def _identity(self, extent: int) -> Tensor:
        if extent not in self.ahead:
            self.ahead[extent] = identity(extent, self.names.fresh("places"))
        return self.ahead[extent].out


def _tidied(program: Program, sums: frozenset[str]) -> Program:
    """`program` with the element-wise readers of a sum joined to it as an epilogue, in a valid order."""
    uses = Uses(program)

    def ends(p: Compute, _: Statement) -> bool:
        name = p.out.name
        once = uses.evaluations[name] <= p.out.size
        return name in sums and p.combiner is None and name not in uses.whole and once

    return eliminate_dead_code(
        reindex_reductions(eliminate_dead_code(inline_chosen(program, ends)))
    )
