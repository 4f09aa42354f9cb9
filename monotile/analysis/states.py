"""States: what must precede the overwriting of their memory, and which statements may do so without a copy.

A state's memory holds its old value until the statement that writes it, its writer. Every reader of the old value
comes before the writer, or is the writer (or shares its step) and reads only the element that it writes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from monotile.analysis.dependence import follows, loads_of
from monotile.analysis.in_place import tables_of, updates_in
from monotile.ir.program import Compute, Program, Scatter, Statement, Update, defined, updates, used

Waits = Mapping[str, frozenset[str]]


def old_values(program: Program) -> frozenset[str]:
    """The tensors that hold a state's old value."""
    return frozenset(t.name for u in updates(program) for t in u.old)


def steady_weights(program: Program) -> frozenset[str]:
    """Weights that the Program does not update."""
    return frozenset(w.tensor.name for w in program.weights) - old_values(program)


def scattered(program: Program) -> dict[str, str]:
    """For each state that Scatters, and loops, may update in place: the name of its old value, by the name of what the first of these makes.

    All other readers of the old value can come before its writer. Of two states that need each other's old value,
    the first one is updated in place.
    """
    out: dict[str, str] = {}
    makers = {t.name: s for s in program.body for t in defined(s)}
    for u in updates(program):
        chain = _chain(program, u)
        if chain and [t.name for t in used(makers[chain[0][0]])].count(chain[0][1]) == 1:
            more = out | dict(chain[:1])
            out = more if _can_be_ordered(program, more) else out
    return out


def _chain(program: Program, u: Update) -> list[tuple[str, str]]:
    """The updates in place that make the new value from the old one, in order: what each makes, and of what; empty if the new value is made in
    another way."""
    before = updates_in(program.body)
    uses = Counter(t.name for s in program.body for t in used(s))
    uses.update(t.name for t in program.outputs)
    chain: list[tuple[str, str]] = []
    name = u.result.name
    while name in before and (not chain or uses[name] == 1):
        chain.insert(0, (name, before[name]))
        name = before[name]
    return chain if [(t.name, t.shape) for t in u.old] == [(name, u.result.shape)] else []


def _can_be_ordered(program: Program, first: Mapping[str, str]) -> bool:
    """Whether the statements have an order in which each of `first` comes after all other readers of its old value."""
    writers = {old: writer for writer, old in first.items()}
    order: TopologicalSorter[str] = TopologicalSorter()
    for s in program.body:
        reads = [t.name for t in used(s)]
        made = {t.name for t in defined(s)}
        for name in made:
            order.add(name, *reads)
            for writer in {writers[r] for r in reads if r in writers} - made:
                order.add(writer, name)
    try:
        order.prepare()
    except CycleError:
        return False
    return True


def waits(program: Program) -> dict[str, frozenset[str]]:
    """By the tensor name of each state's writer: the tensors that readers of the old value define."""
    first = {old: writer for writer, old in scattered(program).items()}
    out: dict[str, frozenset[str]] = {}
    for u in updates(program):
        old = {t.name for t in u.old}
        writer = next((first[name] for name in old if name in first), u.result.name)
        readers = (s for s in program.body if _reads(s, old) and not _defines(s, writer))
        out[writer] = frozenset(t.name for s in readers for t in defined(s)) - {writer}
    return out


def _defines(s: Statement, name: str) -> bool:
    return any(t.name == name for t in defined(s))


def _reads(s: Statement, old: set[str]) -> bool:
    return any(t.name in old for t in used(s))


def may_share(steps: Sequence[Sequence[Compute | Scatter]], program: Program) -> bool:
    """Whether these steps may be one stage: no task overwrites an old value that another task reads."""
    tables = tables_of(program)
    for u in updates(program):
        old = {t.name for t in u.old}
        for k, step in enumerate(steps):
            names = [s.out.name for s in step]
            if u.result.name not in names:
                continue
            own = step[: names.index(u.result.name) + 1]
            for s in own:
                loads = [x for x in loads_of(s) if x.tensor.name in old]
                plain = isinstance(s, Compute) and s.combiner is None and follows(s, loads)
                if loads and not (plain and all(not tables.get(t) for t in old)):
                    return False
            others = [s for j, x in enumerate(steps) for s in x if j != k] + [*step[len(own) :]]
            if any(x.tensor.name in old for s in others for x in loads_of(s)):
                return False
    return True
