"""The same recurrence as Python loops over cells: its graph contains every cell of every step separately."""

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(width, 4 * width)
        self.of_state = nn.Linear(width, 4 * width)

    def forward(
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = (self.of_input(x) + self.of_state(h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Unrolled(nn.Module):
    """The outer loop is over steps, the inner over layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(Cell(width) for _ in range(layers))

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros_like(xs[0])
        states = [(zero, zero) for _ in self.cells]
        out: list[torch.Tensor] = []
        for t in range(xs.shape[0]):
            x = xs[t]
            for k, cell in enumerate(self.cells):
                states[k] = cell(x, *states[k])
                x = states[k][0]
            out.append(x)
        return torch.stack(out)


def make(
    dtype: torch.dtype = torch.float32, *, layers: int = 10, steps: int = 20, width: int = 256
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = Unrolled(width, layers).eval().to(dtype)
    return model, (torch.randn(steps, 1, width, dtype=dtype),)
