"""Calibration on a GPU: every probe runs, is steady, and is not far from the figures that Monotile came with."""

import time

import pytest

from monotile.config import Options
from monotile.targets.calibration import judge
from monotile.targets.cuda.calibrate.measure import machine, measure

pytestmark = pytest.mark.gpu


def test_figures() -> None:
    said: list[str] = []
    begin = time.monotonic()
    found = measure(Options(cache=False), said.append)
    assert time.monotonic() - begin < 180
    readings = {r.name: r for r in judge(machine().shipped, found)}
    for name in ("dram_bandwidth", "l2_bandwidth", "worker_bandwidth", "barrier_seconds", "message_seconds"):  # fmt: skip
        r = readings[name]
        assert 0.25 < r.new / r.old < 4, f"{r}"
    assert "latency_seconds" in readings
    assert readings["dram_copy_bandwidth"].new > 0
    assert any("product" in words for words in said)
