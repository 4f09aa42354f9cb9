"""Times of calls."""

import time

import torch

from monotile.runtime.measure import measure


def test_the_median_on_the_cpu() -> None:
    times = measure(lambda: time.sleep(0.002), torch.device("cpu"), budget=0.05)
    assert 0.002 <= times.best <= times.median < 0.05
    assert times.samples >= 5
