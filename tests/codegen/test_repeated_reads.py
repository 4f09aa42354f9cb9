"""What is read again and again: angles that heads share, and scalars."""

import re

import torch
from torch import Tensor, nn

from monotile.kernels.elementwise.method import Map
from monotile.plan.walk import stages_in
from tests.codegen.emulate_model import Emulated


class Turned(nn.Module):
    """Heads whose halves are turned by angles of each token (as rotary positions do)."""

    def __init__(self, heads: int, tokens: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.cos, self.sin = (nn.Buffer(torch.randn(tokens, width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        one, other = heads.chunk(2, -1)
        return (heads * self.cos + torch.cat([-other, one], -1) * self.sin).to(x.dtype)


def maps(found: Emulated) -> list[tuple[tuple[int, ...], ...]]:
    """Which axes each dim of an element-wise step has."""
    steps = (s for stage in stages_in(found.plan.body) for s in stage.steps)
    return [tuple(d.axes for d in s.dims) for s in steps if isinstance(s.method, Map)]


def test_heads_that_share_angles_follow_each_other() -> None:
    torch.manual_seed(0)
    model, x = Turned(6, 150, 32), torch.randn(2, 150, 192).half()
    found = Emulated(model, (x,))
    assert ((0, 2), (1,), (3,)) in maps(found)
    (mine,) = found(x)
    torch.testing.assert_close(mine, model(x), rtol=2e-3, atol=2e-3)


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
