"""Replicates the scalars that decide loops and branches or bound live elements: every worker computes them for itself, on chip, if they
depend on no other worker.

All workers read such a scalar. Computed by one worker, it costs a grid hand-off and a load from the last-level cache; computed by each,
a barrier of the block. So every worker carries the counters of a loop that may end early, and the values selected by them, for itself.
"""

import math
from collections.abc import Iterator, Mapping

import msgspec

from monotile.analysis.in_place import carried_in_place
from monotile.analysis.states import old_values
from monotile.ir.program import (
    Branch,
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    ends_of,
    looked_at,
    statements,
    used,
)
from monotile.plan.nodes import Body, Bound, Stage, Step
from monotile.plan.places import Final, Place, Register, Replica, Rotate, Workspace, held_by_all
from monotile.plan.streams import streams
from monotile.plan.walk import each_stage, stages_in

ALIGN = 16
MOST = 32  # terms of a reduction that every worker makes for itself
Places = dict[str, tuple[Place, ...]]


def replicate_scalars(
    body: Body, program: Program, places: Places, on_chip: int, room: int
) -> tuple[Body, Places, int]:
    """`body` with the stages of such scalars run everywhere, the new places of the scalars, and the on-chip bytes of a worker: at most
    `room`, else nothing changes."""
    found = _Scalars(program, places, body)
    wanted = found.wanted()
    if not wanted:
        return body, places, on_chip
    end = -(-on_chip // ALIGN) * ALIGN
    new = dict(places)

    def fresh() -> Replica:
        nonlocal end
        end += ALIGN
        return Replica(end - ALIGN)

    for name in sorted(wanted):
        if any(isinstance(p, Workspace) for p in places[name]):
            new[name] = (fresh(),)
    for loop, c in found.carried():
        if c.result.name in wanted:
            both = (fresh(), fresh())
            param = Rotate(loop.axis.name, loop.axis.extent, 0, both, first=new[c.init.name][0])
            new[c.result.name] = (msgspec.structs.replace(param, phase=1, first=None),)
        elif new[c.init.name] != places[c.init.name]:  # carried by an outer or an earlier loop
            (param,) = places[c.param.name]
            assert isinstance(param, Rotate)
            param = msgspec.structs.replace(param, first=new[c.init.name][0])
        else:
            continue
        new |= {c.param.name: (param,), c.out.name: (Final(param),)}

    def moved(s: Stage) -> Stage:
        steps = tuple(_with_known_bounds(x, new) for x in s.steps)
        own = s.everywhere or s.steps[0].computes[0] in wanted
        return msgspec.structs.replace(s, everywhere=own, steps=steps)

    return (each_stage(body, moved), new, end) if end <= room else (body, places, on_chip)


def _with_known_bounds(step: Step, places: Mapping[str, tuple[Place, ...]]) -> Step:
    def with_known(b: Bound) -> Bound:
        known = all(held_by_all(places[n]) for n in (b.first, b.last) if n)
        return msgspec.structs.replace(b, known=known)

    return msgspec.structs.replace(step, bounds=tuple(map(with_known, step.bounds)))


class _Scalars:
    """stage_of: the tensors computed in the same stage, by name. given: tensors never written. able: tensors that any worker can compute
    for itself."""

    def __init__(
        self, program: Program, places: Mapping[str, tuple[Place, ...]], body: Body
    ) -> None:
        self.every = list(statements(program.body))
        self.computes = {s.out.name: s for s in self.every if isinstance(s, Compute)}
        self.carry_of = {t.name: c for _, c in self.carried() for t in (c.param, c.out)}
        self.stage_of: dict[str, frozenset[str]] = {}
        for stage in filter(_is_plain, stages_in(body)):
            names = frozenset(n for step in stage.steps for n in step.computes)
            self.stage_of |= dict.fromkeys(names, names)
        weights = (w.tensor for w in program.weights if not w.table)
        self.given = frozenset(t.name for t in (*program.inputs, *weights))
        self.given -= old_values(program).union(program.watched)
        single = (n for n, s in self.computes.items() if s.out.size == 1 and _terms(s) <= MOST)
        self.elsewhere = {t.name for t in program.outputs}.union(self._elsewhere())
        movable = (Register, Workspace, Rotate)
        self.able = {
            n
            for n in single
            if n in self.stage_of and len(places[n]) == 1 and isinstance(places[n][0], movable)
        } - self.elsewhere
        self._settle()

    def carried(self) -> Iterator[tuple[Loop, Carry]]:
        """The tensors that loops that may end early carry in two buffers."""
        for loop in (s for s in self.every if isinstance(s, Loop) and s.ends_early):
            yield from ((loop, c) for c in loop.carried if c not in carried_in_place(loop))

    def _elsewhere(self) -> Iterator[str]:
        """The tensors whose place is fixed for another reason."""
        ours = [c for _, c in self.carried()]
        for s in self.every:
            match s:
                case Compute():
                    pass
                case Scatter():
                    yield from (s.base.name, s.out.name)
                case Loop():
                    yield from (k.value.name for k in s.stacked)
                    for c in (c for c in s.carried if c not in ours):
                        yield from (c.init.name, c.result.name)
                case Branch():
                    yield from (t.name for o in s.outs for t in (o.then, o.otherwise))

    def _settle(self) -> None:
        """Removes from `able` what depends on other workers."""
        before = -1
        while before != len(self.able):
            before = len(self.able)
            for c in self.carry_of.values():
                if not self._has(c):
                    self.able -= {c.init.name, c.result.name}
            self.able = {
                n
                for n in self.able
                if self.stage_of[n] <= self.able
                and all(self._known(t.name) for t in used(self.computes[n]))
            }

    def _known(self, name: str) -> bool:
        """Whether every worker has it, or can compute it."""
        carry = self.carry_of.get(name)
        return name in self.given or name in self.able or (carry is not None and self._has(carry))

    def _has(self, c: Carry) -> bool:
        held = self.elsewhere.isdisjoint((c.param.name, c.out.name))
        return held and c.init.name in self.able | self.given and c.result.name in self.able

    def wanted(self) -> frozenset[str]:
        """The part of `able` needed: the scalars that decide or bound, their operands, the tensors carried with them, and those computed
        in the same stages."""
        out: set[str] = set()
        ends = (ends_of(s) if isinstance(s, Compute) else looked_at(s) for s in self.every)
        todo = [t.name for of in ends for t in of if self._known(t.name)]
        while todo:
            name = todo.pop()
            if (carry := self.carry_of.get(name)) is not None:
                todo += {carry.init.name, carry.result.name} - out
            if name not in self.able or name in out:
                continue
            out.add(name)
            todo += self.stage_of[name]
            todo += (t.name for t in used(self.computes[name]))
            carries = ({c.init.name, c.result.name} for c in self.carry_of.values())
            todo += (n for both in carries if name in both for n in both - out)
        return frozenset(out)


def _terms(s: Compute) -> int:
    return math.prod(a.extent for a in s.reduce)


def _is_plain(s: Stage) -> bool:
    """Whether each worker may run the stage for itself."""
    special = (bool(x.bounds or x.scratch_bytes) or streams(x) for x in s.steps)
    return not s.everywhere and math.prod(s.grid) == 1 and not any(special)
