"""Values that a list of statements updates in place, by Scatters or by loops inside that do so.

States and loop carries are updated in this way: such a value has one buffer through all iterations, while any other carried value
alternates between two. All other readers of the old value can come before its first update. Only the next update reads an updated value;
the last one is read in the rest of the list.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from monotile.analysis.uses import references
from monotile.ir.program import (
    Branch,
    Carry,
    Loop,
    Program,
    Scatter,
    Statement,
    defined,
    statements,
    updates,
    used,
)

Body = tuple[Statement, ...]
Chains = dict[str, tuple[str, ...]]  # maps an old value to its successive updates


@functools.lru_cache(maxsize=4096)
def carried_in_place(loop: Loop) -> tuple[Carry, ...]:
    """The carries of `loop` that it updates in place."""
    return tuple(c for c in loop.carried if chain(loop, c))


def chain(loop: Loop, carry: Carry) -> tuple[str, ...]:
    """The successive updates of the carry's `param`, with its `result` last; () where it is computed in another way, or cannot be
    updated in place."""
    return _carried(loop).get(carry.param.name, ())


@functools.lru_cache(maxsize=4096)
def _carried(loop: Loop) -> Chains:
    """As `chains`. A param has one whole use: if an inner loop started from it, its memory would be that loop's result too."""
    before = updates_in(loop.body)
    if not any(c.result.name in before for c in loop.carried):
        return {}
    whole, _ = references(loop.body)
    ends = [loop.predicate] if loop.predicate is not None else []
    given = [t.name for t in (*(c.result for c in loop.carried), *(k.value for k in loop.stacked), *ends)]  # fmt: skip
    sole = [c for c in loop.carried if whole[c.param.name] == 1]
    return chains(loop.body, [(c.param.name, c.result.name) for c in sole], given)


def chains(body: Body, pairs: Iterable[tuple[str, str]], given: Iterable[str]) -> Chains:
    """Of `pairs` of an old value and a new one, those that `body` may update in place. given: tensors that the body returns.

    If two depend on each other's old value, the first one is updated in place.
    """
    before, makers = updates_in(body), {t.name: s for s in body for t in defined(s)}
    handed = Counter(given)
    uses = Counter(t.name for s in body for t in used(s)) + handed
    out: Chains = {}
    for old, new in pairs:
        found: list[str] = []
        name = new
        while name in before and (handed[name] == 1 if not found else uses[name] == 1):
            found.insert(0, name)
            name = before[name]
        if name != old or not found:
            continue
        if [t.name for t in used(makers[found[0]])].count(old) == 1:
            more = out | {old: tuple(found)}
            out = more if _can_be_ordered(body, more) else out
    return out


def _can_be_ordered(body: Body, found: Chains) -> bool:
    """Whether there is an order in which the first update of each old value comes after all its other readers."""
    at = {t.name: k for k, s in enumerate(body) for t in defined(s)}
    writers = {old: at[made[0]] for old, made in found.items()}
    order: TopologicalSorter[int] = TopologicalSorter()
    for k, s in enumerate(body):
        reads = [t.name for t in used(s)]
        order.add(k, *(at[r] for r in reads if r in at))
        for writer in {writers[r] for r in reads if r in writers} - {k}:
            order.add(writer, k)
    try:
        order.prepare()
    except CycleError:
        return False
    return True


def first_updates(loop: Loop) -> dict[str, str]:
    """Maps the first update of each value that `loop` updates in place to its `param`."""
    return {made[0]: old for old, made in _carried(loop).items()}


def updates_in(body: Iterable[Statement]) -> dict[str, str]:
    """Maps each tensor that `body` computes by an update in place to the tensor that it overwrites."""
    out: dict[str, str] = {}
    for s in body:
        if isinstance(s, Scatter):
            out[s.out.name] = s.base.name
        elif isinstance(s, Loop):
            out |= {c.out.name: c.init.name for c in carried_in_place(s)}
    return out


def scatters_of(program: Program, name: str) -> Iterator[str]:
    """The Scatters in the chain of updates that gives `name`, also those inside loops."""
    yield from _scatters(dict(_makers(program.body)), name)


@functools.lru_cache(maxsize=64)
def tables_of(program: Program) -> dict[str, int]:
    """The number of leading table dimensions of every weight that has some, of tensors that it becomes by updates in place, and of its
    new value as a state."""
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
