"""Small values of a loop that alternate between two places, as carried ones do: the next iteration makes its own while this one's are still read.

With one place, whoever makes it in the next iteration waits for all readers in this one. Where that is what a hand-off of the grid is for, two
places save it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from monotile.ir.program import Branch, Compute, Loop, Program, Scatter, statements
from monotile.plan.nodes import Body, Repeat
from monotile.plan.places import Place, Rotate, Workspace
from monotile.plan.walk import grid_waits, nodes_in, repeats, stages_in
from monotile.schedule.memory import ALIGN, Memory

MOST = 1 << 14  # bytes of a value
Places = Mapping[str, tuple[Place, ...]]
Waits = Callable[[dict[str, tuple[Place, ...]]], Body]


def alternate(body: Body, program: Program, memory: Memory, synchronised: Waits) -> Memory:
    """`memory` with those values in two places that save hand-offs so. synchronised: `body` with hand-offs, where tensors have given places."""
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
    """What lies in one place of so many bytes, made in an iteration of `loop`."""

    loop: Repeat
    names: tuple[str, ...]
    nbytes: int


def _kept(program: Program) -> frozenset[str]:
    """What has its place from elsewhere: it is carried, stacked or updated in place."""
    out: set[str] = set()
    for s in statements(program.body):
        if isinstance(s, Scatter):
            out |= {s.base.name, s.out.name}
        elif isinstance(s, Loop):
            out |= {t.name for c in s.carried for t in (c.init, c.param, c.result, c.out)}
            out |= {t.name for k in s.stacked for t in (k.value, k.out)}
    return frozenset(out)


def _units(loop: Repeat, program: Program, places: Places, kept: frozenset[str]) -> list[_Unit]:
    """What tasks of `loop`, but not of a loop inside, make that is small."""
    if loop.messages:
        return []
    sizes = {s.out.name: s.out.nbytes for s in statements(program.body) if isinstance(s, Compute)}
    outs = [o for s in statements(program.body) if isinstance(s, Branch) for o in s.outs]
    # Of what nobody reads neither side has to lie where the other one does.
    read = [o for o in outs if o.out.name in places]
    given = {t.name: o.out.name for o in read for t in (o.then, o.otherwise)}
    inside = {s.name for inner in repeats(loop.body) for s in stages_in(inner.body)}
    found: dict[Workspace, list[str]] = {}
    for stage in stages_in(loop.body):
        for name in (n for step in stage.steps for n in step.computes):
            match places[name]:
                case (Workspace() as place,) if stage.name not in inside:
                    found.setdefault(place, []).append(name)
                case _:
                    pass
    units: list[_Unit] = []
    for made in found.values():
        names = list(dict.fromkeys(made))
        for n in names:  # what branches give lies where it was made
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
        places |= dict.fromkeys(unit.names, (place,))
        end += 2 * size
    return Memory(places, end)


def _barriers(body: Body) -> int:
    """Hand-offs of the grid inside loops."""
    inner = (n for loop in repeats(body) for n in (loop, *nodes_in(loop.body)))
    return sum(map(grid_waits, inner))
