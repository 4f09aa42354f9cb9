"""The median of repeated timings, and whether they agree."""

import statistics

import msgspec

STEADY = 0.25  # of the median: how far the middle half of the repeats may be apart


class Timing(msgspec.Struct, frozen=True):
    """Seconds: the median of some repeats, and whether they agree."""

    seconds: float
    steady: bool


def timing(samples: list[float]) -> Timing:
    """Of repeats, 4 or more: steady where the middle half of them lies within `STEADY` of the median."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(middle, high - low <= STEADY * middle)
