"""Tracks whose value bytes hold: a tensor may be read only where no unrelated tensor was written since.

Tensors that pass a value to each other (a loop's carries, the results of a branch's sides, a Scatter's base and result, a state and its
new value) count as one: the replay's byte accesses show which iteration's value is read. This file is about unrelated tensors that share
memory. Only a value that a loop carries in one buffer, without updating it in place, has an owner for each of its names.
"""

from collections.abc import Container, Iterable, Mapping

from monotile.analysis.in_place import carried_in_place
from monotile.ir.expr import Tensor
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
from monotile.plan.access import Bytes, FirstIterations, overlap, resolve
from monotile.plan.places import Place, Rotate

Holds = list[tuple[Bytes, str]]  # bytes, and a tensor whose value they have


class Owners:
    """Maps each tensor to the representative of those that it shares a value with."""

    def __init__(self, program: Program, places: Mapping[str, tuple[Place, ...]]) -> None:
        self._of: dict[str, str] = {}
        self._rooms: dict[str, tuple[Bytes, ...]] = {}
        self._still: dict[str, tuple[Carry, ...]] = {}
        for s in statements(program.body):
            still = tuple(_carried_in_one_place(s, places)) if isinstance(s, Loop) else ()
            for tensors in _one_value(s, still):
                self._join(tensors)
            if isinstance(s, Loop):
                self._rooms[s.axis.name] = tuple(_rooms(s, places))
                self._still[s.axis.name] = still
        for u in updates(program):
            self._join((u.result, *u.old))

    def of(self, name: str) -> str:
        while (up := self._of.get(name, name)) != name:
            name = up
        return name

    def _join(self, tensors: Iterable[Tensor]) -> None:
        first, *rest = (self.of(t.name) for t in tensors)
        for name in rest:
            if self.of(name) != self.of(first):
                self._of[self.of(name)] = self.of(first)

    def written(self, holds: Holds, name: str, where: Bytes) -> Holds:
        """`holds` after `name` is written to `where`."""
        owner = self.of(name)
        kept = [(b, o) for b, o in holds if o == owner or not overlap(b, where)]
        return kept if (where, owner) in kept else [*kept, (where, owner)]

    def stranger(self, holds: Holds, name: str, where: Bytes) -> str | None:
        """An unrelated tensor whose value is in some of `where`; None if there is none."""
        owner = self.of(name)
        return next((o for b, o in holds if o != owner and overlap(b, where)), None)

    def entered(self, holds: Holds, axis: str) -> Holds:
        """`holds` as the loop begins: the memory of its carries and stacks may have held other values before."""
        rooms = self._rooms.get(axis, ())
        left = [(b, o) for b, o in holds if not any(overlap(b, r) for r in rooms)]
        return self._renamed(left, ((c.init, c.param) for c in self._still[axis]))

    def turned(self, holds: Holds, axis: str, *, last: bool) -> Holds:
        """`holds` after an iteration of the loop, which may be the last one."""
        ends = ((c.result, c.out if last else c.param) for c in self._still[axis])
        return self._renamed(holds, ends)

    def _renamed(self, holds: Holds, pairs: Iterable[tuple[Tensor, Tensor]]) -> Holds:
        new = {self.of(x.name): self.of(y.name) for x, y in pairs}
        return [(b, new.get(o, o)) for b, o in holds]


def _carried_in_one_place(loop: Loop, places: Mapping[str, tuple[Place, ...]]) -> Iterable[Carry]:
    """The carries that have a single buffer."""
    for c in loop.carried:
        alone = places.get(c.param.name) == places.get(c.result.name)
        if alone and c not in carried_in_place(loop):
            yield c


def _one_value(s: Statement, still: Container[Carry]) -> Iterable[tuple[Tensor, ...]]:
    match s:
        case Scatter():
            yield s.base, s.out
        case Loop():
            moved = (c for c in s.carried if c not in still)
            yield from ((c.init, c.param, c.result, c.out) for c in moved)
            yield from ((k.value, k.out) for k in s.stacked)
        case Branch():
            yield from ((o.then, o.otherwise, o.out) for o in s.outs)
        case _:
            pass


def _rooms(s: Loop, places: Mapping[str, tuple[Place, ...]]) -> Iterable[Bytes]:
    for c in s.carried:
        for place in places.get(c.param.name, ()):
            if isinstance(place, Rotate):
                for p in place.places:
                    yield from resolve(p, c.param.nbytes, FirstIterations())
    for k in s.stacked:
        for place in places.get(k.out.name, ()):
            yield from resolve(place, k.out.nbytes, FirstIterations())
