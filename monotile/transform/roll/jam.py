"""Loop jamming: two independent loops of equal extent become one (Allen and Cocke, 1971: loop fusion).

The two directions of a recurrent layer, or two encoders, have equally many steps. Step k of both is then one iteration, whose statements
can run side by side, with one hand-off instead of two.
"""

from collections.abc import Iterator, Sequence

import msgspec

from monotile.analysis.states import Waits, waits
from monotile.ir.expr import Expr, substitute
from monotile.ir.program import Loop, Program, Scatter, Statement, defined, statements, used
from monotile.transform.rewrite import Body, map_bodies, map_exprs, with_body
from monotile.transform.roll.order import depths, topological

Pair = tuple[Loop, Loop]


def jammable(program: Program) -> Iterator[Pair]:
    """Pairs of loops of one list of statements that may become one, outer lists first: each loop with the next one that may."""
    before = waits(program)
    lists = [program.body]
    for body in lists:
        lists += [s.body for s in body if isinstance(s, Loop)]
        loops = [s for s in body if isinstance(s, Loop) and _plain(s, program)]
        order = [(_made(s), _needs(s, before)) for s in body] if len(loops) > 1 else []
        for k, first in enumerate(loops[:-1]):
            after = _dependents(first, order)
            for second in loops[k + 1 :]:
                if second.axis.extent == first.axis.extent and after.isdisjoint(_made(second)):
                    yield first, second
                    break


def jam(program: Program, pair: Pair) -> Program:
    """`program` with both loops as one, which has the first one's axis."""
    first, second = pair
    before = waits(program)

    def go(body: Body) -> Body:
        if not any(s is first for s in body):
            return tuple(map_bodies(s, go) for s in body)
        both = _jammed(first, second, before)
        rest = (both if s is first else s for s in body if s is not second)
        return topological(tuple(rest), before)

    return with_body(program, go(program.body))


def _plain(loop: Loop, program: Program) -> bool:
    """Whether the number of its iterations is known, and nothing in it depends on when it runs: no update in place, no value that the
    host changes."""
    return (
        not loop.ends_early
        and not any(isinstance(s, Scatter) for s in statements(loop.body))
        and not program.changing.intersection(t.name for t in used(loop))
    )


def _made(s: Statement) -> set[str]:
    return {t.name for t in defined(s)}


def _needs(s: Statement, before: Waits) -> set[str]:
    """The tensors that must be computed before `s`."""
    return {t.name for t in used(s)}.union(*(before.get(n, ()) for n in _made(s)))


def _dependents(first: Loop, order: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """The loop's results and those of its transitive dependents. order: of each statement, its results and dependences."""
    names = _made(first)
    for made, needs in order:
        if not needs.isdisjoint(names):
            names |= made
    return names


def _jammed(first: Loop, second: Loop, before: Waits) -> Loop:
    axes: dict[str, Expr] = {second.axis.name: first.axis}
    body = (*first.body, *(_along(s, axes) for s in second.body))
    # In order of depth, independent statements are adjacent.
    order = sorted(zip(depths(body), range(len(body)), strict=True))
    return msgspec.structs.replace(
        first,
        carried=(*first.carried, *second.carried),
        stacked=(*first.stacked, *second.stacked),
        body=topological([body[k] for _, k in order], before),
    )


def _along(s: Statement, axes: dict[str, Expr]) -> Statement:
    """`s` with other axes for the loops around it."""
    inner = map_bodies(s, lambda body: tuple(_along(x, axes) for x in body))
    return map_exprs(inner, lambda e: substitute(e, axes))
