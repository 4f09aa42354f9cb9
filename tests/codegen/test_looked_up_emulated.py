"""Maps that look rows up, several turns at a time, on the emulator."""

import pytest
import torch
from torch import Tensor, nn

from tests.codegen.emulate import COMPILER, EmulationError
from tests.codegen.emulate_model import Emulated

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

IDS, KINDS, WIDTH = 1001, 7, 12


class Embedded(nn.Module):
    """Rows of a table by index, and of another by the same."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(KINDS, WIDTH), requires_grad=False)
        self.other = nn.Parameter(torch.randn(KINDS, WIDTH), requires_grad=False)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.one[ids] * x + self.other[ids]


def test_indices_are_read_together() -> None:
    torch.manual_seed(0)
    model = Embedded().half()
    ids, x = torch.randint(0, KINDS, (IDS,)), torch.randn(IDS, WIDTH).half()
    fast = Emulated(model, (ids, x), workers=2)
    assert "fetch_places" in fast.source.text
    for seed in range(2):
        (found,) = fast(ids, x, seed=seed)
        torch.testing.assert_close(found, model(ids, x), rtol=2e-3, atol=2e-3)
    ids[-1] = KINDS
    with pytest.raises(EmulationError, match="failure"):
        fast(ids, x)


class Edges(nn.Module):
    """Both ends of each edge side by side, in rows of an odd length: which of them is read, and where, depends on the column."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        first, second = x[edges[1]], x[edges[0]]
        return torch.cat([first, second - first], 1)


def test_what_is_found_there_is_read_together() -> None:
    torch.manual_seed(0)
    x, edges = torch.randn(40, 13).half(), torch.randint(0, 40, (2, 701))
    fast = Emulated(Edges(), (x, edges), workers=2)
    assert "fetch_there" in fast.source.text
    for seed in range(2):
        (found,) = fast(x, edges, seed=seed)
        torch.testing.assert_close(found, Edges()(x, edges), rtol=2e-3, atol=2e-3)
    edges[1, -1] = -1 - 40
    with pytest.raises(EmulationError, match="failure"):
        fast(x, edges)


class Sorted(nn.Module):
    """Rows of a table in an order that is looked up itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(KINDS, 136), requires_grad=False)

    def forward(self, ids: Tensor, order: Tensor) -> Tensor:
        return self.table[ids[order]]


def test_look_ups_in_several_steps() -> None:
    torch.manual_seed(0)
    model, ids, order = Sorted().half(), torch.randint(-KINDS, KINDS, (IDS,)), torch.randperm(IDS)
    fast = Emulated(model, (ids, order), workers=2)
    assert fast.source.text.count("auto fetch_places") == 2
    for seed in range(2):
        (found,) = fast(ids, order, seed=seed)
        assert torch.equal(found, model(ids, order))
    for bad in (KINDS, -KINDS - 1):
        with pytest.raises(EmulationError, match="failure"):
            fast(torch.where(order == 5, bad, ids), order)
