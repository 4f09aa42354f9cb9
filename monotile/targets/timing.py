"""The median of repeated timings, and whether they agree."""

import statistics

import msgspec

STEADY = 0.25  # of the median: how far the middle half of the repeats may be apart


class Timing(msgspec.Struct, frozen=True):
    """Seconds: the median of some repeats, and whether they agree."""

    seconds: float
    steady: bool


def timing(samples: list[float]) -> Timing:
    """The median of 4 or more repeats; steady if the middle half of them is within `STEADY` of it."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(middle, high - low <= STEADY * middle)
