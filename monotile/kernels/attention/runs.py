"""Attention with different live keys for different rows: runs of rows with equal ends."""

import math
from collections.abc import Mapping, Sequence

from monotile.ir.expr import Axis
from monotile.ir.program import At, Compute
from monotile.kernels.attention.match import Attention

WHOLE = 16  # rows of the smallest block
LIVE_KEYS = 8  # live keys for each that are assumed for a run of rows


def in_runs(found: Attention, c: Compute, at: Sequence[At]) -> bool:
    """Whether the tasks of a softmax-weighted sum, of which `c` is a reduction along the keys, can each be within one of the runs `at`."""
    if found.shares is None or c not in (found.top, found.total, found.result):
        return False  # a part of the keys has few rows, which end as a cache does
    own = _axes(found, c)
    rows = [a for p in found.rows if (a := found.result.axes[p]).extent > 1]

    def fits(x: At) -> bool:
        axis = own.get(x.axis.name)
        if axis not in rows:
            return axis is not None
        place = rows.index(axis)
        whole = axis.extent * math.prod(a.extent for a in rows[place + 1 :])
        return x.run % WHOLE == 0 and (place == 0 or whole % WHOLE == 0)

    return all(map(fits, at))


def alike(found: Attention) -> bool:
    """Whether all reductions along the keys have the same ends in each row."""

    def ends(c: Compute) -> list[object]:
        own = _axes(found, c)
        return [(x.ends, {(own.get(a.axis.name), a.run) for a in x.at}) for x in c.live if x.at and x.axis in c.reduce]  # fmt: skip

    return ends(found.top) == ends(found.total) == ends(found.result)


def usual_keys(found: Attention) -> int:
    """How many keys a task typically reads: where runs of rows have different ends, a fraction of all, plus the neighbours that a run
    may have."""
    keys = found.key.extent
    x = found.result.live_along(found.result.reduce[0])
    run = max((a.run for a in x.at), default=1) if x is not None else 1
    return keys if run == 1 else min(keys, keys // LIVE_KEYS + run)


def _axes(found: Attention, c: Compute) -> Mapping[str, Axis]:
    """The axes of a reduction along the keys in those of the result."""
    if c == found.result:
        return {a.name: a for a in c.axes}
    return {n: a for n, a in found.of_row(c).items() if isinstance(a, Axis)}
