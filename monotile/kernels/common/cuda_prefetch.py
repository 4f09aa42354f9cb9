"""Determines which loads can be prefetched."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from monotile.analysis.guarded import choices
from monotile.analysis.unconditional import TRUE, both, conditional, either, executed
from monotile.codegen.packs import LANE
from monotile.codegen.vector import VectorEmitter
from monotile.ir.bounds import in_bounds
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Select,
    SizeTensor,
    axes_of,
    loads,
    rebuild,
)
from monotile.ir.intervals import Ranges, learn

Conditions = Mapping[Load, Expr]


def known_ahead(e: VectorEmitter, bodies: Sequence[Expr]) -> dict[Load, Expr]:
    """The loads of `bodies`, with their conditions as in `read_by`, except those from tensors that the stage itself computes."""
    return {x: when for x, when in read_by(bodies).items() if not e.computed(x.tensor)}


def read_by(bodies: Sequence[Expr], safe: Conditions = MappingProxyType({})) -> dict[Load, Expr]:
    """The loads of `bodies`, each with its condition. Loads whose index contains a load (gathers) are left out, and those whose condition
    depends on data, except for `safe` ones (`safe_loads`)."""
    wanted: dict[Load, Expr] = {}
    unknown: set[Load] = set()
    for body in bodies:
        for x, when in conditional(body):
            if any(map(loads, x.index)):
                continue
            if loads(when) and x not in safe:
                unknown.add(x)
            else:
                when = safe[x] if loads(when) else when
                known = wanted.get(x)
                wanted[x] = when if known is None else either(known, when)
    # Under which conditions a Load is read for an index is not known here.
    unknown |= {y for body in bodies for x in loads(body) for i in x.index for y in loads(i)}
    return {x: when for x, when in wanted.items() if when == TRUE or x not in unknown}


def safe_loads(bodies: Sequence[Expr]) -> dict[Load, Expr]:
    """Loads of `bodies` on which data decides, and the same data for all elements: a state that counts only from the second token on. Each with
    the rest of its condition, under which it is in range and may be executed in any case."""
    found: dict[Load, Expr] = {}
    for x, when in (read for body in bodies for read in conditional(body)):
        rest, asked = TRUE, loads(when)
        for part in _conjuncts(when):
            rest = rest if loads(part) else both(rest, part)
        once = asked and not any(axes_of(i) for y in asked for i in y.index)
        if once and in_bounds(x, Ranges(learn(rest, True))):
            found[x] = either(found.get(x, rest), rest)
    return found


def _conjuncts(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Binary) and e.op == "and":
        yield from _conjuncts(e.a)
        yield from _conjuncts(e.b)
    else:
        yield e


def read_at_once(
    bodies: Sequence[Expr], safe: Conditions = MappingProxyType({})
) -> dict[Load | Select, Expr]:
    """As `read_by`, but a choice between several loads, such as that of a concatenation, is one item instead of several."""
    found = dict.fromkeys(x for body in bodies for x in choices(body))

    def go(x: Expr) -> Expr:
        return Const(0, x.dtype) if x in found else rebuild(x, go)

    rest = read_by([go(body) for body in bodies] if found else bodies, safe)
    return {**dict.fromkeys(found, TRUE), **rest}


class LookedUp(NamedTuple):
    """Loads in steps, each at indices that the steps before it load. places: loads of indices, by step, which are executed in any case. found: the loads
    at these indices, with their conditions."""

    places: list[list[Load]]
    found: dict[Load, Expr]

    def leading_to(self, found: Iterable[Load]) -> list[dict[Load, Expr]]:
        """The steps before those of `found`, with the loads that they need."""
        needed = {y for x in found for i in x.index for y in loads(i)}
        steps: list[dict[Load, Expr]] = [
            {y: TRUE for y in step if y in needed} for step in self.places
        ]
        return [step for step in steps if step]


def looked_up(bodies: Sequence[Expr], there: Set[Expr], width: int) -> LookedUp:
    """The gathers of `bodies` whose index is the same for all lanes of a vector. Left out are those with a condition that depends on data.
    there: loads that may be executed under any condition."""
    places: dict[Load, None] = {}
    found: dict[Load, Expr] = {}
    unknown = {y for body in bodies for x in loads(body) for i in x.index for y in loads(i)}
    for x, when in (read for body in bodies for read in conditional(body)):
        asked = [y for i in x.index for y in loads(i) if not isinstance(y.tensor, SizeTensor)]
        if when == TRUE:
            there = there | {*executed(x)}
        known = [
            y
            for y in asked
            if (y in there or y.tensor.size == 1) and Axis(LANE, width) not in axes_of(y)
        ]
        places |= dict.fromkeys(known)
        if not asked or len(known) < len(asked) or loads(when):
            unknown.add(x)
        else:
            found[x] = either(found.get(x, when), when)
    steps: dict[int, list[Load]] = {}
    for y in places:
        steps.setdefault(_depth(y), []).append(y)
    told = {x: when for x, when in found.items() if when == TRUE or x not in unknown}
    return LookedUp([steps[k] for k in sorted(steps)], told)


def _depth(x: Load) -> int:
    """How many loads wait for one another for the index of `x`."""
    return max((1 + _depth(y) for i in x.index for y in loads(i)), default=0)


def always_there(bodies: Sequence[Expr]) -> Iterator[Load]:
    """The index loads of `bodies` that are in range for all values of the axes."""
    for x in (x for body in bodies for x in loads(body)):
        yield from (y for i in x.index for y in loads(i) if in_bounds(y, Ranges()))
