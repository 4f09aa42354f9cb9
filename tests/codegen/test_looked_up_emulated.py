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
