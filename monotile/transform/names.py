"""Fresh names in a Program."""

import re

from monotile.ir.program import Compute, Loop, Program, Scatter, Statement, statements


class Names:
    """The names of a Program's tensors and axes; new ones are added."""

    def __init__(self, program: Program) -> None:
        self._taken = {t.name for t in program.inputs} | {w.tensor.name for w in program.weights}
        for s in statements(program.body):
            self._taken |= _names(s)
        self._next: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def fresh(self, stem: str) -> str:
        """`stem`, or `stem_1`, `stem_2` and so on.

        A repeated suffix and a trailing number are dropped first.
        """
        stem = re.sub(r"(_[a-z]+)\1+$", r"\1", stem)
        if stem not in self._taken:
            self._taken.add(stem)
            return stem
        base = re.sub(r"_\d+$", "", stem)
        n = self._next.get(base, 1)
        while f"{base}_{n}" in self._taken:
            n += 1
        self._next[base] = n + 1
        self._taken.add(f"{base}_{n}")
        return f"{base}_{n}"


def _names(s: Statement) -> set[str]:
    match s:
        case Compute():
            return {s.out.name, *(a.name for a in (*s.axes, *s.reduce))}
        case Scatter():
            return {s.out.name, *(a.name for a in s.axes)}
        case Loop():
            carried = {t.name for c in s.carried for t in (c.param, c.result, c.out)}
            return {s.axis.name} | carried | {k.out.name for k in s.stacked}
        case _:
            return {o.out.name for o in s.outs}
