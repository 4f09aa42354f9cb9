"""Prefetches of maps: of a later step at the stage's beginning, so that there is one latency instead of one per step; with many vectors per
thread, of several at once, so that there is one latency instead of one per vector."""

import math
from collections.abc import Iterable, Sequence, Set

from monotile.analysis.guarded import choices
from monotile.analysis.reuse import LARGE
from monotile.codegen.view import View
from monotile.ir.bounds import in_bounds
from monotile.ir.expr import Axis, Expr, Load, Select, axes_of, loads
from monotile.ir.intervals import Ranges
from monotile.ir.program import expressions
from monotile.kernels.elementwise.method import Map
from monotile.kernels.family import Prefetching
from monotile.plan.nodes import Prefetch
from monotile.targets.model import fitted

MOST_WORDS = 32  # registers of a thread for loads in flight
WHOLE = 4  # registers of a whole vector
LONG = (
    12  # with so many more iterations than are in flight, twice as many are, in twice the registers
)


def prefetch(where: Prefetching, at: str) -> tuple[Prefetch, ...]:
    """At "stage" for steps after the first of whose vectors each thread has all in flight at once, otherwise at "loop"."""
    step, target = where.step, where.target
    assert isinstance(step.method, Map)
    if at == "ring" and where.streamed:
        read = (
            x for n in step.computes for e in expressions(where.statements[n]) for x in loads(e)
        )
        given = requested(read, where.view, where.streamed)
        return (Prefetch("large", "ring"),) if given and not step.bounds else ()
    if at != "stage" or step.bounds:
        return ()
    own = {name for s in where.stage.steps for name in s.computes}
    elements = math.prod(d.tile + d.lead for d in step.dims)
    width = step.method.vector
    turns = -(-elements // (width * target.threads))
    bodies = [part for name in step.computes for part in expressions(where.statements[name])]
    along = {
        where.statements[name].axes[-1] for name in step.computes if where.statements[name].axes
    }
    read = {x for body in bodies for x in loads(body)}
    far = _words((x for x in read if x.tensor.name not in own), width, along)
    if turns == 1:
        early = where.number > 0 and 0 < far <= MOST_WORDS
        return (Prefetch("all", "stage"),) if early else ()
    if not far:
        return ()
    others = [x for x in read_once(bodies) if not tensors(x) & set(step.computes)]
    most = fitted(target.model.prefetch).turns  # of whole vectors; their code is written out
    room = MOST_WORDS
    gathers = any(loads(i) for x in others for y in loads(x) for i in y.index)
    if turns > LONG * most:
        room *= 2
        most *= 2 if len(step.dims) == 1 or gathers else 1  # see `cuda_iterations.py`
    for what in ("all", "large"):
        asked = [x for x in others if what == "all" or is_large(x)]
        words = _words(asked, width, along)
        if not words:
            continue
        together = min(most * max(1, WHOLE // words), room // words)
        rounds = -(-turns // max(1, together))
        together = -(-turns // rounds)
        if together > 1:
            later = (
                where.number == 0 or rounds > 1 or gathers or all(tensors(x) & own for x in asked)
            )
            return (Prefetch(what, "loop" if later else "stage", together),)
    return ()


def read_once(bodies: Sequence[Expr]) -> set[Load | Select]:
    """All loads of `bodies`; a choice between several loads is one item."""
    found = {x for body in bodies for x in choices(body)}
    chosen = {x for one in found for x in loads(one)}
    return found | {x for body in bodies for x in loads(body) if x not in chosen}


def tensors(x: Load | Select) -> set[str]:
    """Names of the tensors that `x` loads from."""
    return {y.tensor.name for y in loads(x)}


def is_large(x: Load | Select) -> bool:
    """Whether the prefetch of "large" tensors includes `x`."""
    return any(y.tensor.nbytes > LARGE for y in loads(x))


def requested(found: Iterable[Load], view: View, weights: Iterable[str]) -> list[Load]:
    """Those of `found` whose lines are requested ahead: of large weights and states that no statement has made, at places in range that no
    data decides."""
    there = {p for name in weights for p in view.places[name]}
    return [
        x
        for x in dict.fromkeys(found)
        if is_large(x)
        and view.place(x.tensor) in there
        and x.tensor.name not in view.statements
        and not any(map(loads, x.index))
        and in_bounds(x, Ranges())
    ]


def _words(found: Iterable[Load | Select], width: int, along: Set[Axis]) -> int:
    """Registers for vectors of `found` along these axes: for one element of those that are the same for all lanes."""
    lanes = ((x, width if axes_of(x) & along else 1) for x in found)
    return sum(-(-x.dtype.itemsize * n // 4) for x, n in lanes)
