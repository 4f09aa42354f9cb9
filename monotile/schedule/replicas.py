"""Replicates small stages read by streamed products: every worker computes them for itself, on chip. That takes a barrier of the block in
place of a grid barrier, and no load from the last-level cache. Examples are the normalisation of one row, and the combination of
attention's parts.

Values that only such stages pass to each other are replicated too, also through loops. Where a sum is normalised before it is added to
the residual stream (Gemma, OLMo 2), every worker has its own copy of the whole stream.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from monotile.analysis.in_place import carried_in_place
from monotile.ir.program import (
    Branch,
    Compute,
    Loop,
    Program,
    Scatter,
    defined,
    is_snapshot,
    looked_at,
    statements,
    used,
    wholes,
)
from monotile.plan.nodes import Body, Stage, Step
from monotile.plan.places import Place, Register, Replica, Rotate, Workspace
from monotile.plan.streams import streams
from monotile.plan.walk import each_stage, stages_in
from monotile.schedule.replica_places import Held, Room, Traffic
from monotile.targets.target import Target

MOST = 1 << 14  # bytes of a stage's results, and of all that loops carry
ALIGN = 128
Statements = Mapping[str, Compute | Scatter]
Places = dict[str, tuple[Place, ...]]


def replicate(
    body: Body,
    program: Program,
    computes: Statements,
    places: Places,
    on_chip: int,
    target: Target,
) -> tuple[Body, Places, int]:
    """`body` with such stages run everywhere, the new places of their results, and the on-chip bytes of a worker."""
    if not any(streams(step) for stage in stages_in(body) for step in stage.steps):
        return body, places, on_chip
    loops = {s.axis.name: s for s in statements(program.body) if isinstance(s, Loop)}
    traffic = Traffic(computes, loops)
    families = _Chosen(body, program, traffic, places, target).families()
    if not families:
        return body, places, on_chip
    own = {name: stage for f in families for name, stage in f.stages.items()}
    body = each_stage(
        body,
        lambda s: msgspec.structs.replace(own[s.name], everywhere=True) if s.name in own else s,
    )
    room = Room(traffic, on_chip, ALIGN)
    values = [v for f in families for v in f.values]
    room.carry([v for v in values if v.carried])
    room.pass_on(body, [v for v in values if not v.carried])
    moved = {n: tuple(_moved(p, room.at) for p in found) for n, found in places.items()}
    return body, moved, room.end


@dataclass(frozen=True, slots=True)
class _Family:
    """Values that are replicated together or not at all. stages: those that compute them, by name, run everywhere."""

    stages: dict[str, Stage]
    values: list[Held]


class _Chosen:
    """shared: maps a tensor to those that share a place with it. able: one-task stages that may be replicated, by name. maker: maps a
    tensor to the name of its stage. readers: the stages that load it."""

    def __init__(
        self,
        body: Body,
        program: Program,
        traffic: Traffic,
        places: Places,
        target: Target,
    ) -> None:
        self.body, self.traffic, self.computes = body, traffic, traffic.computes
        self.places, self.target = places, target
        self.handed = frozenset(_handed(program, self.computes, body))
        self.shared = _shared(places)
        self.maker = {n: s.name for s in stages_in(body) for n in traffic.made(s)}
        self.readers: dict[str, list[Stage]] = {}
        for stage in stages_in(body):
            for name in traffic.read(stage):
                self.readers.setdefault(name, []).append(stage)
        whole = ((s.name, self._as_one_task(s)) for s in stages_in(body))
        self.able = {name: s for name, s in whole if self._is_able(s)}
        self._settle()

    def _as_one_task(self, stage: Stage) -> Stage:
        """An element-wise stage as one task, if loading its operands takes each worker less time than the hand-off; else unchanged."""
        if len(stage.steps) != 1 or stage.steps[0].bounds or stage.steps[0].scratch_bytes:
            return stage
        (step,) = stage.steps
        made = [self.computes[n] for n in step.computes]
        single = all(isinstance(s, Compute) and s.combiner is None for s in made)
        read: dict[str, int] = {}
        for s in made:
            for t in used(s):
                found = read.get(t.name, 0) + s.out.size * t.dtype.itemsize
                read[t.name] = min(found, t.nbytes)
        seconds = sum(read.values()) * self.target.workers / self.target.l2_bandwidth
        if not single or not step.method.light or seconds > self.target.barrier_seconds:
            return stage
        dims = tuple(msgspec.structs.replace(d, tile=d.extent) for d in step.dims)
        if any(d.lead for d in dims):
            return stage
        steps = (msgspec.structs.replace(step, dims=dims),)
        return msgspec.structs.replace(stage, grid=tuple(1 for _ in stage.grid), steps=steps)

    def _is_able(self, stage: Stage) -> bool:
        """Whether its single task stores only small results in the workspace."""
        stored = self._stored(stage)
        plain = all(isinstance(self.computes[n], Compute) and self._slots(n) for n in stored)
        whole = math.prod(stage.grid) == 1 and not any(map(streams, stage.steps))
        small = sum(_size(self.computes[n]) for n in stored) <= MOST
        return bool(stored) and plain and whole and small

    def _stored(self, stage: Stage) -> list[str]:
        made = [n for step in stage.steps for n in step.computes]
        return [n for n in made if not all(isinstance(p, Register) for p in self.places[n])]

    def _slots(self, name: str) -> tuple[int, ...]:
        """The workspace places of `name`; () if it may be elsewhere too."""
        found = self.places[name]
        return _offsets(found[0]) or () if len(found) == 1 else ()

    def _names(self, stage: Stage) -> frozenset[str]:
        """The tensors that share places with its results."""
        return frozenset(n for x in self._stored(stage) for n in self.shared[x])

    def _settle(self) -> None:
        """Removes from `able` what other stages read or write."""
        before = -1
        while before != len(self.able):
            before = len(self.able)
            self.able = {
                k: s for k, s in self.able.items() if all(map(self._may_lie, self._names(s)))
            }

    def _may_lie(self, name: str) -> bool:
        made = name not in self.maker or self.maker[name] in self.able
        readers = self.readers.get(name, ())
        return (
            made
            and name not in self.handed
            and bool(self._slots(name))
            and all(s.name in self.able or self._is_streamed(s, name) for s in readers)
        )

    def _is_streamed(self, stage: Stage, name: str) -> bool:
        """Whether only streamed products read it there."""
        return all(streams(step) for step in stage.steps if self._reads(step, name))

    def _reads(self, step: Step, name: str) -> bool:
        return any(t.name == name for n in step.computes for t in used(self.computes[n]))

    def families(self) -> list[_Family]:
        """The families that streamed products read; of loop-carried ones as many as there is room for."""
        found = list(self._families())
        for f in found:
            if sum(v.nbytes for v in f.values if v.carried) > MOST:
                large = {n for v in f.values if v.carried for n in v.names}
                self.able = {
                    k: s for k, s in self.able.items() if large.isdisjoint(self._stored(s))
                }
                self._settle()
                return self.families()
        return [f for f in found if self._is_read(f)]

    def _families(self) -> Iterator[_Family]:
        near: dict[str, set[str]] = {name: {name} for name in self.able}
        for stage in self.able.values():
            for n in self._names(stage):
                others = {s.name for s in self.readers.get(n, ())} | {self.maker.get(n, stage.name)}
                for other in others & near.keys():
                    near[stage.name].add(other)
                    near[other].add(stage.name)
        for names in _components(near):
            stages = {n: s for n, s in self.able.items() if n in names}
            held = {self.shared[n] for s in stages.values() for n in self._stored(s)}
            yield _Family(stages, sorted(map(self._value, held), key=lambda v: v.offsets))

    def _value(self, names: frozenset[str]) -> Held:
        size = max(_size(self.computes[n]) for n in names if n in self.computes)
        offsets = tuple(sorted({o for n in names for o in self._slots(n)}))
        return Held(names, offsets, size, self.traffic.one_after_another(self.body, names))

    def _is_read(self, f: _Family) -> bool:
        """Whether one of its values is read by streamed products, apart from its own stages."""
        names = {n for v in f.values for n in v.names}
        return any(s.name not in f.stages for n in names for s in self.readers.get(n, ()))


def _components(near: Mapping[str, Iterable[str]]) -> Iterator[frozenset[str]]:
    """The connected components of the relation `near` between names."""
    left = dict.fromkeys(near)
    while left:
        todo = [next(iter(left))]
        found = set(todo)
        while todo:
            more = set(near[todo.pop()]) - found
            found |= more
            todo += more
        left = {n: None for n in left if n not in found}
        yield frozenset(found)


def _shared(places: Places) -> dict[str, frozenset[str]]:
    """Maps each workspace tensor to those that share places with it, directly or through others."""
    near: dict[str, set[str]] = {}
    first: dict[int, str] = {}
    for name, found in places.items():
        for offset in (x for p in found for x in _within(p)):
            other = first.setdefault(offset, name)
            near.setdefault(name, set()).add(other)
            near[other].add(name)
    return {n: names for names in _components(near) for n in names}


def _size(s: Compute | Scatter) -> int:
    return -(-s.out.nbytes // ALIGN) * ALIGN


def _offsets(p: Place) -> tuple[int, ...] | None:
    """Its possible offsets in the workspace; None if it may be elsewhere, as where a loop's last value is a result."""
    match p:
        case Workspace():
            return _within(p)
        case Rotate(_, _, _, places, first, last):
            every = [_offsets(q) for q in (*places, first, last) if q is not None]
            return None if None in every else _within(p)
        case _:
            return None


def _within(p: Place) -> tuple[int, ...]:
    """Its places that are in the workspace."""
    match p:
        case Workspace(offset):
            return (offset,)
        case Rotate(_, _, _, places, first, last):
            return tuple(o for q in (*places, first, last) if q is not None for o in _within(q))
        case _:
            return ()


def _moved(p: Place, at: Mapping[int, int]) -> Place:
    """`p` on chip. at: maps the place in the workspace to on-chip bytes."""
    match p:
        case Workspace(offset) if offset in at:
            return Replica(at[offset])
        case Rotate(_, _, _, (a, b), first, last):
            ends = [None if q is None else _moved(q, at) for q in (first, last)]
            both = (_moved(a, at), _moved(b, at))
            if {*both, *ends} - {None} == {both[0]}:
                return both[0]
            return msgspec.structs.replace(p, places=both, first=ends[0], last=ends[1])
        case _:
            return p


def _handed(program: Program, computes: Statements, body: Body) -> Iterator[str]:
    """Tensors that are read other than by Loads, or have one value for all readers."""
    yield from (t.name for t in program.outputs)
    yield from (n for n, s in computes.items() if is_snapshot(s, program.changing))
    for stage in stages_in(body):
        yield from (x.size for x in stage.live)
        yield from (n for step in stage.steps for b in step.bounds for n in (b.first, b.last))
    for s in statements(program.body):
        yield from (t.name for t in looked_at(s))
        match s:
            case Compute():
                pass
            case Scatter() | Branch():
                yield from (t.name for t in (*wholes(s), *defined(s)))
            case Loop():
                carried = s.carried if s.ends_early else carried_in_place(s)
                yield from (t.name for c in carried for t in (c.init, c.param, c.result, c.out))
                yield from (t.name for k in s.stacked for t in (k.value, k.out))
