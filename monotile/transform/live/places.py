"""Where in a Program a scalar can be computed: in the outermost loop and at the earliest statement where its operands are available."""

from collections.abc import Iterable, Iterator

import msgspec

from monotile.ir.expr import Axis, Expr, axes_of, loads
from monotile.ir.program import (
    Branch,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    defined,
)
from monotile.transform.rewrite import Body


class Place(msgspec.Struct, frozen=True, order=True):
    """In the body at the end of `path`, after statement `order` (numbered in order across all bodies) and its bodies."""

    path: tuple[int, ...]
    order: int

    def before(self, other: "Place") -> bool:
        """Whether a value computed here is visible to the statement at `other`."""
        return other.path[: len(self.path)] == self.path and self.order < other.order


START = Place((0,), 0)


class Places:
    """Places of a Program. `at`: each statement, by the names that it defines. since: the place from which each tensor is available.
    loops: by axis."""

    def __init__(self, program: Program) -> None:
        self.at: dict[str, Place] = {}
        self.since = {t.name: START for t in program.inputs}
        self.since |= {w.tensor.name: START for w in program.weights}
        self.loops: dict[Axis, Place] = {}
        self._order, self._bodies = 0, 0
        self._walk(program.body, (0,))

    def _walk(self, body: Body, path: tuple[int, ...]) -> None:
        for s in body:
            self._order += 1
            here = Place(path, self._order)
            self.at |= {t.name: here for t in defined(s)}
            match s:
                case Compute() | Scatter():
                    pass
                case Loop():
                    inner = self._inner(path)
                    start = Place(inner, self._order)
                    self.loops[s.axis] = start
                    self.since |= {c.param.name: start for c in s.carried}
                    self._walk(s.body, inner)
                case Branch():
                    self._walk(s.then, self._inner(path))
                    self._walk(s.otherwise, self._inner(path))
            self.since |= {t.name: Place(path, self._order) for t in defined(s)}

    def _inner(self, path: tuple[int, ...]) -> tuple[int, ...]:
        self._bodies += 1
        return (*path, self._bodies)

    def earliest(self, bodies: Iterable[Expr]) -> Place:
        """The earliest place where all operands of these expressions are available, within the loops whose axes they name."""
        found = [START]
        for e in bodies:
            found += [self.since[x.tensor.name] for x in loads(e)]
            found += [self.loops[a] for a in axes_of(e) if a in self.loops]
        return max(found, key=lambda p: (len(p.path), p.order))


def inserted(program: Program, new: dict[Place, list[Compute]]) -> Program:
    """`program` with new statements."""
    return msgspec.structs.replace(program, body=_Inserter(new).body(program.body, (0,)))


class _Inserter:
    def __init__(self, new: dict[Place, list[Compute]]) -> None:
        self.new, self._order, self._bodies = new, 0, 0

    def body(self, body: Body, path: tuple[int, ...]) -> Body:
        return tuple(self._each(body, path))

    def _each(self, body: Body, path: tuple[int, ...]) -> Iterator[Statement]:
        yield from self.new.get(Place(path, self._order), [])
        for s in body:
            self._order += 1
            match s:
                case Compute() | Scatter():
                    yield s
                case Loop():
                    yield msgspec.structs.replace(s, body=self.body(s.body, self._inner(path)))
                case Branch():
                    then = self.body(s.then, self._inner(path))
                    otherwise = self.body(s.otherwise, self._inner(path))
                    yield msgspec.structs.replace(s, then=then, otherwise=otherwise)
            yield from self.new.get(Place(path, self._order), [])

    def _inner(self, path: tuple[int, ...]) -> tuple[int, ...]:
        self._bodies += 1
        return (*path, self._bodies)
