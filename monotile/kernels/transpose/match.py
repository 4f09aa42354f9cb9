"""Copies that change the order of axes."""

from monotile.ir.expr import Axis, Load, Unary, axes_of
from monotile.ir.program import Compute


def copied(s: Compute) -> Load | None:
    """What `s` copies, if it is a copy: as it is, or rounded (`transform/legalise/round_factors.py`)."""
    match s:
        case Compute(combiner=None, body=Load() as x) | Compute(combiner=None, body=Unary("to_tf32", Load() as x)):  # fmt: skip
            return x
        case _:
            return None


def behind_last(s: Compute) -> tuple[int, ...]:
    """Positions of the axes that lie behind the last axis of `s` in what it copies, in their order there; none unless `s` is a copy
    that reads each of them, and the last axis, whole and by itself: no other dimension's index knows them."""
    x = copied(s)
    if x is None or not s.axes:
        return ()
    last = s.axes[-1]
    if x.dtype is not s.out.dtype or last not in x.index:
        return ()
    start = x.index.index(last)
    known = [axes_of(i) for i in x.index]
    position = {a: p for p, a in enumerate(s.axes)}
    found: list[int] = []
    for i, extent in zip(x.index[start:], x.tensor.shape[start:], strict=True):
        if not isinstance(i, Axis) or i not in position or i.extent != extent:
            return ()
        if sum(i in axes for axes in known) > 1:
            return ()
        found.append(position[i])
    return tuple(found[1:])


def together(behind: tuple[int, ...]) -> tuple[int, ...]:
    """The last of these positions, with those before it that follow each other."""
    start = max(0, len(behind) - 1)
    while start and behind[start - 1] == behind[start] - 1:
        start -= 1
    return behind[start:]
