"""Networks with data-dependent control flow: one kernel, as eager PyTorch has them, on the CPU and on the emulator."""

import pytest
import torch

import monotile
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import tensors
from tests.models.control_networks import Counter, cases

CASES = cases()
OPTIONS = monotile.Options(cache=False)


@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name: str) -> None:
    model, calls = CASES[name]
    fast = monotile.compile(model, calls[0], options=OPTIONS)
    assert fast.kernels == 1
    for args in calls:
        torch.testing.assert_close(
            tensors(fast(*args)), tensors(model(*args)), rtol=1e-4, atol=1e-5
        )


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", CASES)
def test_on_the_emulator(name: str) -> None:
    model, calls = CASES[name]
    fast = Emulated(model, calls[0])
    for seed, args in enumerate(calls):
        found = fast(*args, seed=seed)
        torch.testing.assert_close(found, tensors(model(*args)), rtol=1e-4, atol=1e-5)


def test_states() -> None:
    ours, theirs = Counter(), Counter()
    fast = monotile.compile(ours, (torch.zeros(4),), options=OPTIONS)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(4) * 3
        torch.testing.assert_close(fast(x), theirs(x))
        torch.testing.assert_close(ours.seen, theirs.seen)
        assert ours.steps == theirs.steps
