"""Large pages under weights: which they are, and that what lies in them stays."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import monotile
from monotile.targets.cpu.pages import GAP, PAGE, enlarge, pages


def parts(*spans: tuple[int, int]) -> list[torch.Tensor]:
    """Views of one tensor, each from a byte to another, counted from the start of its first large page."""
    memory = torch.zeros(12 * PAGE, dtype=torch.uint8)
    start = -memory.data_ptr() % PAGE
    return [memory[start + a : start + b] for a, b in spans]


@pytest.mark.parametrize(
    ("spans", "found"),
    [
        ([], []),
        ([(5, PAGE)], []),
        ([(5, PAGE + 5)], [(0, 2)]),
        ([(PAGE, 3 * PAGE)], [(1, 3)]),
        ([(0, PAGE // 2), (PAGE // 2 + 64, PAGE + 64)], [(0, 2)]),
        ([(0, PAGE // 2), (PAGE // 2 + GAP, PAGE + GAP)], []),
        ([(5, PAGE + 5), (3 * PAGE + 9, 5 * PAGE)], [(0, 2), (3, 5)]),
        ([(5, PAGE + 5), (PAGE + PAGE // 2, 3 * PAGE)], [(0, 3)]),
        ([(0, 4 * PAGE), (PAGE, 2 * PAGE)], [(0, 4)]),
    ],
)
def test_which_pages(spans: list[tuple[int, int]], found: list[tuple[int, int]]) -> None:
    tensors = parts(*spans)
    start = min((x.data_ptr() for x in tensors), default=0) // PAGE * PAGE
    first = min((a // PAGE for a, _ in spans), default=0)
    got = [((a - start) // PAGE + first, (b - start) // PAGE + first) for a, b in pages(tensors)]
    assert got == found
    assert pages(tensors[::-1]) == pages(tensors)


def large(x: torch.Tensor) -> int:
    """Bytes in large pages of the mappings that a tensor lies in."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            a, b = (int(n, 16) for n in bounds.groups())
            inside = a < x.data_ptr() + x.nbytes and x.data_ptr() < b
        elif inside and line.startswith("AnonHugePages:"):
            total += int(line.split()[1]) << 10
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux")
def test_what_lies_in_them_stays() -> None:
    (x,) = parts((100, 6 * PAGE + 100))
    x.random_()
    at, before = x.data_ptr(), x.clone()
    enlarge([x])
    assert x.data_ptr() == at
    assert torch.equal(x, before)
    enlarge([x])  # of what lies in large pages already
    assert torch.equal(x, before)
    if not large(x):
        pytest.skip("this kernel gives no large pages on request")
    assert large(x) >= 5 * PAGE


def test_weights_and_those_that_take_their_place() -> None:
    model = nn.Linear(1024, 1024).eval().requires_grad_(False)
    x = torch.randn(1, 1024)
    fast = monotile.compile(model, (x,), target="cpu")
    torch.testing.assert_close(fast(x), model(x))
    other = nn.Linear(1024, 1024).requires_grad_(False)
    fast.load_parameters(other.state_dict())
    torch.testing.assert_close(fast(x), other(x))
