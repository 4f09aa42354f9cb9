"""Old values of states that are overwritten: what must come before that, and which statements may overwrite without a copy.

A state's memory holds its old value until its writer, the statement that overwrites it. Every reader of the old value comes before the
writer, or is the writer (or shares its step) and reads only the element that it writes. The same holds for a value that a loop carries
in place, in each iteration.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain as joined

from monotile.analysis.dependence import follows, loads_of, updates_own
from monotile.analysis.in_place import (
    carried_in_place,
    chain,
    chains,
    first_updates,
    scatters_of,
)
from monotile.ir.program import (
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    defined,
    statements,
    updates,
    used,
)

Waits = Mapping[str, frozenset[str]]


def old_values(program: Program) -> frozenset[str]:
    """The tensors that hold a state's old value."""
    return frozenset(t.name for u in updates(program) for t in u.old)


def steady_weights(program: Program) -> frozenset[str]:
    """Weights that the Program does not update."""
    return frozenset(w.tensor.name for w in program.weights) - old_values(program)


def scattered(program: Program) -> dict[str, str]:
    """For each state that Scatters, and loops, may update in place: maps the result of the first of these to the name of the old value."""
    whole = [(u, t) for u in updates(program) for t in u.old if len(u.old) == 1]
    pairs = [(t.name, u.result.name) for u, t in whole if t.shape == u.result.shape]
    found = chains(program.body, pairs, [t.name for t in program.outputs]) if pairs else {}
    return {made[0]: old for old, made in found.items()}


def waits(program: Program) -> dict[str, frozenset[str]]:
    """Maps the first statement that overwrites an old value to the tensors that readers of that value define."""
    first = {old: writer for writer, old in scattered(program).items()}
    out: dict[str, frozenset[str]] = {}
    for u in updates(program):
        old = {t.name for t in u.old}
        writer = next((first[name] for name in old if name in first), u.result.name)
        out[writer] = _read_by(program.body, old, writer)
    for loop in (s for s in statements(program.body) if isinstance(s, Loop)):
        out |= {new: _read_by(loop.body, {old}, new) for new, old in first_updates(loop).items()}
    return out


def _read_by(body: Iterable[Statement], old: set[str], writer: str) -> frozenset[str]:
    readers = (s for s in body if _reads(s, old) and not _defines(s, writer))
    return frozenset(t.name for s in readers for t in defined(s)) - {writer}


@functools.lru_cache(maxsize=64)
def overwritten_by(program: Program) -> Mapping[str, frozenset[str]]:
    """Maps each Compute or Scatter that overwrites an old value, a state's or a loop carry's in place, to the tensors that have held it."""
    out: dict[str, frozenset[str]] = {}
    for u in updates(program):
        old = frozenset(t.name for t in u.old)
        out |= dict.fromkeys((u.result.name, *scatters_of(program, u.result.name)), old)
    for loop in (s for s in statements(program.body) if isinstance(s, Loop)):
        for c in carried_in_place(loop):
            for name in joined.from_iterable(scatters_of(program, n) for n in chain(loop, c)):
                out[name] = out.get(name, frozenset()) | {c.param.name}
    return out


def _defines(s: Statement, name: str) -> bool:
    return any(t.name == name for t in defined(s))


def _reads(s: Statement, old: set[str]) -> bool:
    return any(t.name in old for t in used(s))


def may_share(
    steps: Sequence[Sequence[Compute | Scatter]],
    writers: Mapping[str, frozenset[str]],
    tables: Mapping[str, int],
) -> bool:
    """Whether these steps may be one stage: no task overwrites an old value that another task reads. writers, tables: `overwritten_by`
    and `tables_of` of the Program."""
    for step, at, old in _writers(steps, writers):
        own = step[: at + 1]
        for s in own:
            loads = [x for x in loads_of(s) if x.tensor.name in old]
            plain = isinstance(s, Compute) and s.combiner is None and follows(s, loads)
            if loads and not (plain and all(not tables.get(t) for t in old)):
                return False
        writer = step[at]
        others = [s for x in steps if x is not step for s in x]
        for s in (*others, *step[at + 1 :]):
            read = {x.tensor.name for x in loads_of(s)} & old
            if isinstance(writer, Scatter) and updates_own(s, writer):
                read -= {writer.base.name}
            if read:
                return False
    return True


def _writers(
    steps: Sequence[Sequence[Compute | Scatter]], writers: Mapping[str, frozenset[str]]
) -> Iterator[tuple[Sequence[Compute | Scatter], int, frozenset[str]]]:
    """The steps that overwrite old values, the positions of their statements, and those values."""
    for step in steps:
        for at, s in enumerate(step):
            if s.out.name in writers:
                yield step, at, writers[s.out.name]
