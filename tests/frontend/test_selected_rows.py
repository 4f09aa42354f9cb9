"""Operators on the rows that a mask selects, whose number is data: all, some and none, also with a dynamic size."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import monotile

T = torch.Tensor


def by_number(x: T, y: T) -> tuple[T, ...]:
    """Python's functions of the number."""
    return (x + len(y), y / float(max(y.shape[0], 1)), x * int(y.shape[0] * 0.5), x - round(0.3 * len(y)), x * math.ceil(len(y) / 3), torch.linspace(0, 1, len(y) + 1))  # fmt: skip


def unless_empty(x: T, y: T) -> T:
    """The model's own question, which is a branch."""
    if y.numel() == 0:
        return x.sum(0)
    return y.amax(0)


def unless_short(x: T, y: T) -> T:
    return y.sum(0) if len(y) > 2 else x[0]


CASES: dict[str, Callable[[T, T], object]] = {
    "rolled": lambda x, y: (y.roll(-1, 0), y.roll(1, 1), y.roll((2, -1), (0, 1))),
    "distances": lambda x, y: (torch.cdist(x, y), torch.cdist(y, x).amin(1)),
    "logsumexp": lambda x, y: (y.logsumexp(1), torch.cat([y, x]).logsumexp(0)),
    "running": lambda x, y: (y.cummax(0).values, y.cummin(1).values, y.logcumsumexp(0)),
    "attended": lambda x, y: F.scaled_dot_product_attention(x, torch.cat([y, x]), torch.cat([y, x])),
    "squares": lambda x, y: (y @ y.T, (y @ y.T).tril().flatten(), torch.kron(y[:, 0], y[:, 1])),
    "by_number": by_number,
    "unless_empty": unless_empty,
    "unless_short": unless_short,
}  # fmt: skip


class Selected(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: T, mask: T) -> object:
        return CASES[self.name](x, x[mask])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("open_", [False, True])
def test_of_selected_rows(name: str, open_: bool) -> None:
    torch.manual_seed(0)
    model, rows = Selected(name).eval(), Dim("rows", min=2, max=9)
    shapes = ({0: rows}, {0: rows}) if open_ else None
    args = torch.randn(6, 4), torch.rand(6) < 0.5
    fast = monotile.compile(model, args, target="cpu", dynamic_shapes=shapes)
    for n, share in (
        (6, 0.0),
        (6, 1.0),
        (6, 0.4),
        *([(2, 0.5), (9, 0.7), (9, 0.0)] if open_ else []),
    ):
        x, mask = torch.randn(n, 4), torch.rand(n) < share
        torch.testing.assert_close(fast(x, mask), model(x, mask))
