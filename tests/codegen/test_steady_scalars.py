"""What is read again and again: scalars."""

import re

import torch
from torch import Tensor, nn

from tests.codegen.emulate_model import Emulated


class Clipped(nn.Module):
    """A product between bounds that the model holds (as in Gemma 4's towers)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 128, bias=False)
        self.low, self.high = nn.Buffer(torch.tensor(-0.5)), nn.Buffer(torch.tensor(0.25))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).clamp(self.low, self.high)


def test_a_scalar_is_read_before_what_is_done_for_each_vector() -> None:
    torch.manual_seed(0)
    model, x = Clipped().half(), torch.randn(96, 64).half()
    found = Emulated(model, (x,))
    lines = found.source.text.splitlines()
    (begin,) = [n for n, line in enumerate(lines) if "auto epilogue" in line]
    bounds = [n for n, line in enumerate(lines) if re.search(r"mt_load_f16\(b_(low|high)", line)]
    assert len(bounds) == 2
    assert max(bounds) < begin
    (mine,) = found(x)
    torch.testing.assert_close(mine, model(x), rtol=2e-3, atol=2e-3)
