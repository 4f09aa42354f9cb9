"""Combines Weights of equal type into one Weight: a table of pointers, without copies."""

from collections.abc import Sequence

from monotile.ir.expr import Tensor
from monotile.ir.program import Program, Statement, Weight, statements, used
from monotile.transform.names import Names


class Tables:
    """The Weights of a Program while a pass combines some of them."""

    def __init__(self, program: Program, names: Names) -> None:
        self._names = names
        self._weights = {w.tensor.name: w for w in program.weights}
        self._made: dict[tuple[str, ...], Tensor] = {}
        self._states = frozenset(program.states)

    @property
    def weights(self) -> frozenset[str]:
        """The names of all Weights, old and new."""
        return frozenset(self._weights)

    def table(self, tensors: Sequence[Tensor]) -> Tensor:
        """The Weight whose element g along its first dimension is the Weight `tensors[g]`."""
        key = tuple(t.name for t in tensors)
        made = self._made.get(key)
        if made is None:
            old = [self._weights[name] for name in key]
            first = old[0]
            made = Tensor(
                self._names.fresh(f"{first.tensor.name}_all"),
                (len(old), *first.tensor.shape),
                first.tensor.dtype,
            )
            parts = tuple(p for w in old for p in w.parts)
            self._weights[made.name] = Weight(made, parts, first.table + 1)
            self._made[key] = made
        return made

    def used_in(self, body: Sequence[Statement], outputs: Sequence[Tensor]) -> tuple[Weight, ...]:
        """The Weights that a Program with this body and these outputs reads, and those that are states."""
        read = {t.name for s in statements(tuple(body)) for t in used(s)}
        read |= {t.name for t in outputs}
        missing = set(self._states)
        missing -= {p for name, w in self._weights.items() if name in read for p in w.parts}
        kept: list[Weight] = []
        for name, w in self._weights.items():
            if name in read or not missing.isdisjoint(w.parts):
                kept.append(w)
                missing -= set(w.parts)
        return tuple(kept)
