"""Tandem repeats of a sequence: subsequences that are followed by equal ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Repeat:
    """sequence[i] == sequence[i + period] for start <= i < start + matches; matches >= period."""

    start: int
    period: int
    matches: int

    @property
    def count(self) -> int:
        """Number of whole adjacent periods."""
        return self.matches // self.period + 1


def repeats(sequence: Sequence[int]) -> list[Repeat]:
    """Every maximal repeat of every period, by period and start. Quadratic, with one vector operation per period."""
    x = np.asarray(sequence, dtype=np.int64)
    found: list[Repeat] = []
    for period in range(1, len(x) // 2 + 1):
        equal = x[:-period] == x[period:]
        if np.count_nonzero(equal) < period:
            continue
        edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
        starts, ends = edges[::2], edges[1::2]
        for k in np.flatnonzero(ends - starts >= period):
            found.append(Repeat(int(starts[k]), period, int(ends[k] - starts[k])))
    return found
