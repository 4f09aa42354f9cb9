"""Times of calls."""

import gc
import time
import weakref
from unittest.mock import MagicMock

import pytest
import torch

from monotile.runtime.measure import graphed, measure


def test_the_median_on_the_cpu() -> None:
    times = measure(lambda: time.sleep(0.002), torch.device("cpu"), budget=0.05)
    assert 0.002 <= times.best <= times.median < 0.05
    assert times.samples >= 5


def test_what_was_captured_lives_as_long_as_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads and writes its call's tensors by their addresses, and refers to none of them."""
    for name in ("Stream", "current_stream", "CUDAGraph", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: MagicMock())
    state = torch.zeros(3)
    alive = weakref.ref(state)
    replay = graphed(lambda state=state: state.add_(1))
    del state
    gc.collect()
    assert alive() is not None
    replay()
    del replay
    gc.collect()
    assert alive() is None
