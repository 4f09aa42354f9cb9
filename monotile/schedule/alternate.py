"""Double buffering of small values that a loop computes: the next iteration writes one buffer while this iteration's tasks still read the
other.

With one buffer, the stage that writes it in the next iteration waits for all readers of this iteration. Where that dependence is the
only reason for a grid barrier, a second buffer removes the barrier. Carried values already have two buffers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from monotile.ir.program import Branch, Compute, Loop, Program, Scatter, statements
from monotile.plan.nodes import Body, Repeat
from monotile.plan.places import Place, Rotate, Shared, Workspace
from monotile.plan.walk import grid_waits, nodes_in, repeats, stages_in
from monotile.schedule.memory import ALIGN, Memory

MOST = 1 << 16  # bytes of a value
Places = Mapping[str, tuple[Place, ...]]
Waits = Callable[[dict[str, tuple[Place, ...]]], Body]


def alternate(body: Body, program: Program, memory: Memory, synchronised: Waits) -> Memory:
    """`memory` with two buffers for those values whose second buffer removes a grid barrier. synchronised: `body` with its hand-offs,
    computed with the places of a given memory."""
    kept = _kept(program)
    units = [u for loop in repeats(body) for u in _units(loop, program, memory.places, kept)]
    if not units:
        return memory

    def cost(chosen: Iterable[_Unit]) -> int:
        return _barriers(synchronised(_moved(memory, chosen).places))

    before, best = cost(()), cost(units)
    if best >= before:
        return memory
    for unit in tuple(units):
        fewer = [u for u in units if u is not unit]
        if cost(fewer) == best:
            units = fewer
    return _moved(memory, units)


@dataclass(frozen=True, slots=True)
class _Unit:
    """The tensors that share one workspace place of this many bytes, written in each iteration of `loop`."""

    loop: Repeat
    names: tuple[str, ...]
    nbytes: int


def _kept(program: Program) -> frozenset[str]:
    """The tensors whose place is fixed for another reason: they are carried, stacked or updated in place."""
    out: set[str] = set()
    for s in statements(program.body):
        if isinstance(s, Scatter):
            out |= {s.base.name, s.out.name}
        elif isinstance(s, Loop):
            out |= {t.name for c in s.carried for t in (c.init, c.param, c.result, c.out)}
            out |= {t.name for k in s.stacked for t in (k.value, k.out)}
    return frozenset(out)


def _units(loop: Repeat, program: Program, places: Places, kept: frozenset[str]) -> list[_Unit]:
    """The small tensors that tasks of `loop` compute, apart from those of loops inside it."""
    if loop.only_messages:
        return []
    sizes = {s.out.name: s.out.nbytes for s in statements(program.body) if isinstance(s, Compute)}
    outs = [o for s in statements(program.body) if isinstance(s, Branch) for o in s.outs]
    # A tensor that nobody reads need not be at the same place on both sides.
    read = [o for o in outs if o.out.name in places]
    given = {t.name: o.out.name for o in read for t in (o.then, o.otherwise)}
    inside = {s.name for inner in repeats(loop.body) for s in stages_in(inner.body)}
    found: dict[Workspace, list[str]] = {}
    for stage in stages_in(loop.body):
        for name in (n for step in stage.steps for n in step.computes):
            match [p for p in places[name] if not isinstance(p, Shared)]:
                case [Workspace() as place] if stage.name not in inside:
                    found.setdefault(place, []).append(name)
                case _:
                    pass
    units: list[_Unit] = []
    for made in found.values():
        names = list(dict.fromkeys(made))
        for n in names:  # the results of branches are where they were computed
            if (out := given.get(n)) is not None and out not in names:
                names.append(out)
        if kept.isdisjoint(names):
            units.append(_Unit(loop, tuple(names), max(sizes.get(n, MOST) for n in made)))
    return [u for u in units if u.nbytes < MOST]


def _moved(memory: Memory, units: Iterable[_Unit]) -> Memory:
    places, end = dict(memory.places), memory.workspace_bytes
    for unit in units:
        size = -(-unit.nbytes // ALIGN) * ALIGN
        both = (Workspace(end), Workspace(end + size))
        place = Rotate(unit.loop.axis, unit.loop.extent, 0, both)
        for name in unit.names:
            on_chip = [p for p in places[name] if isinstance(p, Shared)]
            places[name] = (*on_chip, place)
        end += 2 * size
    return Memory(places, end)


def _barriers(body: Body) -> int:
    """The number of grid barriers inside loops."""
    inner = (n for loop in repeats(body) for n in (loop, *nodes_in(loop.body)))
    return sum(map(grid_waits, inner))
