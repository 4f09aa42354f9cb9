"""Carried values that a loop updates where they lie: by Scatters, or by loops inside that do so.

Such a value has one buffer through all iterations, where any other carried value alternates between two. Nothing but the next update
reads what has been updated; what the last one made is read in the rest of the iteration.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator

from monotile.analysis.uses import references
from monotile.ir.program import (
    Branch,
    Carry,
    Loop,
    Program,
    Scatter,
    Statement,
    statements,
    updates,
)


@functools.lru_cache(maxsize=4096)
def carried_in_place(loop: Loop) -> tuple[Carry, ...]:
    """The carries of `loop` that it updates where they lie."""
    return tuple(c for c in loop.carried if chain(loop, c))


def chain(loop: Loop, carry: Carry) -> tuple[str, ...]:
    """What the carry's `param` becomes, update by update, its `result` last; () where it is made in another way, or read on the way."""
    before, (whole, loaded) = updates_in(loop.body), _uses(loop)
    out: list[str] = []
    name = carry.result.name
    while name in before and whole[name] == 1 and not (out and loaded[name]):
        out.insert(0, name)
        name = before[name]
    sole = whole[name] == 1 and not loaded[name]
    return tuple(out) if name == carry.param.name and out and sole else ()


def updates_in(body: Iterable[Statement]) -> dict[str, str]:
    """By each tensor that `body` makes by an update in place: what it updates."""
    out: dict[str, str] = {}
    for s in body:
        if isinstance(s, Scatter):
            out[s.out.name] = s.base.name
        elif isinstance(s, Loop):
            out |= {c.out.name: c.init.name for c in carried_in_place(s)}
    return out


@functools.lru_cache(maxsize=4096)
def updated_in(loop: Loop) -> frozenset[str]:
    """The tensors of `loop` that its own statements may write over: the carries' params, and what becomes of them but for the last."""
    out: set[str] = set()
    for c in carried_in_place(loop):
        out |= {c.param.name, *chain(loop, c)[:-1]}
    return frozenset(out)


def scatters_of(program: Program, name: str) -> Iterator[str]:
    """The Scatters that make `name` out of what it updates, those inside loops too."""
    yield from _scatters(dict(_makers(program.body)), name)


@functools.lru_cache(maxsize=64)
def tables_of(program: Program) -> dict[str, int]:
    """Leading table dimensions of every weight that has some, of what becomes of it by updates in place, and of its new value as a state."""
    out = {w.tensor.name: w.table for w in program.weights if w.table}
    out |= {u.result.name: out[u.name] for u in updates(program) if u.name in out}

    def go(body: Iterable[Statement]) -> None:
        for s in body:
            match s:
                case Scatter() if s.base.name in out:
                    out[s.out.name] = out[s.base.name]
                case Loop():
                    for c in carried_in_place(s):
                        if c.init.name in out:
                            out[c.param.name] = out[c.out.name] = out[c.init.name]
                    go(s.body)
                case Branch():
                    go((*s.then, *s.otherwise))
                case _:
                    pass

    go(program.body)
    return out


def _makers(body: Iterable[Statement]) -> Iterator[tuple[str, Scatter | tuple[Loop, Carry]]]:
    for s in statements(tuple(body)):
        if isinstance(s, Scatter):
            yield s.out.name, s
        elif isinstance(s, Loop):
            yield from ((c.out.name, (s, c)) for c in carried_in_place(s))


def _scatters(makers: dict[str, Scatter | tuple[Loop, Carry]], name: str) -> Iterator[str]:
    found = makers.get(name)
    while found is not None:
        if isinstance(found, Scatter):
            yield found.out.name
            found = makers.get(found.base.name)
        else:
            loop, carry = found
            for n in chain(loop, carry):
                yield from _scatters(makers, n)
            found = makers.get(carry.init.name)


@functools.lru_cache(maxsize=4096)
def _uses(loop: Loop) -> tuple[Counter[str], Counter[str]]:
    """How often tensors are used as wholes in `loop`, and how often loaded from."""
    whole, loaded = references(loop.body)
    whole.update(c.result.name for c in loop.carried)
    whole.update(k.value.name for k in loop.stacked)
    return whole, loaded
