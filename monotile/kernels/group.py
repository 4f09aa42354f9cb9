"""A Group: the statements of one stage, as the scheduler gives them to the families to be cut into tasks."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType

from monotile.analysis.dependence import loads_of
from monotile.analysis.states import Waits
from monotile.ir.program import Compute, Scatter, used

Row = tuple[
    tuple[str, int, int], ...
]  # (tensor, position of the axis, lead) for every Compute of the group


@dataclass(frozen=True)
class Group:
    """steps: of Computes, which Scatters may follow, or one Scatter. rows: the axes along which tasks may be cut. waits: tensors that
    must be computed before, though not read: those computed from a state's old value before its memory gets the new one. match: the
    family's match for the one step (`Family.match`); the group joins no other then."""

    steps: tuple[tuple[Compute | Scatter, ...], ...]
    rows: tuple[Row, ...]
    waits: frozenset[str] = frozenset()
    match: object = field(default=None, compare=False)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.steps, self.rows, self.waits))

    @property
    def matched(self) -> bool:
        return self.match is not None

    def statements(self) -> Iterator[Compute | Scatter]:
        for step in self.steps:
            yield from step

    @functools.cached_property
    def tensors(self) -> frozenset[str]:
        return frozenset(s.out.name for s in self.statements())

    @functools.cached_property
    def readers(self) -> dict[str, list[Compute | Scatter]]:
        """Maps each tensor to its readers in later steps than its own."""
        found: dict[str, list[Compute | Scatter]] = {}
        made: set[str] = set()
        for step in self.steps:
            for s in step:
                for name in {x.tensor.name for x in loads_of(s)} & made:
                    found.setdefault(name, []).append(s)
            made |= {s.out.name for s in step}
        return found

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        """Tensors read from outside."""
        read = frozenset(t.name for s in self.statements() for t in used(s))
        return (read | self.waits) - self.tensors


def single(s: Compute | Scatter, waits: Waits = MappingProxyType({})) -> Group:
    rows = tuple(((s.out.name, p, 0),) for p in range(len(s.axes)))
    return Group(((s,),), rows, waits.get(s.out.name, frozenset()))
