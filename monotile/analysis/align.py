"""Alignment of groups of statements: whether they differ only as the iterations of a loop may.

For n groups of k statements, every slot (a tensor that is read) and every integer literal gets a class
that is valid for all groups; otherwise the groups do not align.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from monotile.analysis.skeleton import Skeleton
from monotile.ir.expr import Tensor


@dataclass(frozen=True, slots=True)
class Same:
    """One tensor from outside, read by every group."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Local:
    """Defined in the same group: its definition number `position`."""

    position: int


@dataclass(frozen=True, slots=True)
class Carried:
    """Definition number `position` of the previous group; `init` in the first."""

    position: int
    init: Tensor


@dataclass(frozen=True, slots=True)
class Table:
    """One Weight per group."""

    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Members:
    """One value per group, all carried by the enclosing loop: group g reads the param of carry `carries[g]`
    and defines that carry's result as its definition number `position`."""

    carries: tuple[int, ...]
    position: int


Class = Same | Local | Carried | Table | Members


@dataclass(frozen=True, slots=True)
class Progression:
    """A literal that is start + step * group."""

    start: int
    step: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """first: number of the first group. count: how many align. slots and constants: in the order in which the group's statements are
    visited (`analysis.skeleton`)."""

    first: int
    count: int
    slots: tuple[Class, ...]
    constants: tuple[Progression, ...]


@dataclass(frozen=True, slots=True)
class Around:
    """The enclosing loop of the groups: the names of its params and of its results, by carry."""

    params: dict[str, int]
    results: tuple[str, ...]


class _Group:
    """The slots and literals of one group, which may differ from those of the next."""

    __slots__ = ("constants", "definitions", "names", "uses")

    def __init__(self, parts: Sequence[Skeleton]) -> None:
        self.uses = [t for p in parts for t in p.uses]
        self.definitions = [t for p in parts for t in p.definitions]
        self.constants = [c for p in parts for c in p.constants]
        self.names = {t.name: k for k, t in enumerate(self.definitions)}


class _Run:
    """Groups from `first` on that align; grows by one group at a time."""

    def __init__(
        self,
        groups: Sequence[_Group],
        first: int,
        owner: dict[str, int],
        weights: frozenset[str],
        around: Around | None,
    ) -> None:
        self.groups = groups
        self.first = first
        self.count = 1
        self.owner = owner
        self.weights = weights
        self.around = around
        self.slots: list[Class] = []
        self.steps: list[int] = []

    def grow(self) -> bool:
        """Adds the next group if it continues the classes of the groups before it."""
        g = self.first + self.count
        if self.count == 1:
            slots: list[Class] = []
            for j in range(len(self.groups[g].uses)):
                c = self._start(j)
                if c is None:
                    return False
                slots.append(c)
            self.slots = slots
            self.steps = self._differences(g)
        else:
            if self._differences(g) != self.steps:
                return False
            if not all(self._continues(j, c, g) for j, c in enumerate(self.slots)):
                return False
        self.count += 1
        return True

    def _differences(self, g: int) -> list[int]:
        before, here = self.groups[g - 1].constants, self.groups[g].constants
        return [b - a for a, b in zip(before, here, strict=True)]

    def _owner(self, t: Tensor) -> int | None:
        """The group of this run that defines `t`."""
        g = self.owner.get(t.name)
        return g if g is not None and g >= self.first else None

    def _start(self, j: int) -> Class | None:
        """The class of slot `j` in the first two groups."""
        first, second = self.groups[self.first], self.groups[self.first + 1]
        a, b = first.uses[j], second.uses[j]
        in_a, in_b = self._owner(a), self._owner(b)
        if in_a is not None:
            position = first.names.get(a.name)
            if position is None or second.names.get(b.name) != position:
                return None
            return Local(position)
        if in_b is not None:
            position = first.names.get(b.name)
            return None if position is None else Carried(position, a)
        if a == b:
            return Same(a)
        if a.name in self.weights and b.name in self.weights:
            return Table((a, b))
        return self._member(a, b)

    def _member(self, a: Tensor, b: Tensor) -> Members | None:
        if self.around is None or not (
            a.name in self.around.params and b.name in self.around.params
        ):
            return None
        carries = (self.around.params[a.name], self.around.params[b.name])
        result = self.around.results[carries[0]]
        position = self.groups[self.first].names.get(result)
        if position is None:
            return None
        ok = self.groups[self.first + 1].names.get(self.around.results[carries[1]]) == position
        return Members(carries, position) if ok else None

    def _continues(self, j: int, c: Class, g: int) -> bool:
        t = self.groups[g].uses[j]
        match c:
            case Same(tensor):
                return t == tensor
            case Local(position):
                return self.groups[g].names.get(t.name) == position
            case Carried(position):
                return self.groups[g - 1].names.get(t.name) == position
            case Table(tensors):
                if t.name in self.weights and self._owner(t) is None:
                    self.slots[j] = Table((*tensors, t))
                    return True
                return False
            case Members(carries, position):
                if self.around is None or t.name not in self.around.params:
                    return False
                carry = self.around.params[t.name]
                if self.groups[g].names.get(self.around.results[carry]) != position:
                    return False
                self.slots[j] = Members((*carries, carry), position)
                return True

    def alignment(self) -> Alignment:
        start = self.groups[self.first].constants
        return Alignment(
            self.first,
            self.count,
            tuple(_cut(c, self.count) for c in self.slots),
            tuple(Progression(a, d) for a, d in zip(start, self.steps, strict=True)),
        )


def _cut(c: Class, count: int) -> Class:
    """`c` restricted to the first `count` groups: a rejected group may have extended it."""
    match c:
        case Table(tensors):
            return Table(tensors[:count])
        case Members(carries, position):
            return Members(carries[:count], position)
        case _:
            return c


def align(
    groups: Sequence[Sequence[Skeleton]], weights: frozenset[str], around: Around | None = None
) -> list[Alignment]:
    """The longest runs of two or more neighbouring groups that align, from the first group on.

    The groups have equal keys, position by position. weights: names of Weights, of which the groups may
    read one each. around: the enclosing loop of the groups, if any.
    """
    made = [_Group(g) for g in groups]
    owner = {name: g for g, group in enumerate(made) for name in group.names}
    found: list[Alignment] = []
    first = 0
    while first + 1 < len(made):
        run = _Run(made, first, owner, weights, around)
        while first + run.count < len(made) and run.grow():
            pass
        if run.count > 1:
            found.append(run.alignment())
        first += run.count
    return found
