"""Indexing by a scalar tensor: `table[t]`, `cache[:, t] = x`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.errors import CaptureError, IndexOutOfRangeError
from monotile.frontends.torch.capture import capture
from tests.frontend.against import Of, check


def schedule(x: Tensor, t: Tensor) -> Tensor:
    """As a sampler of a diffusion model looks up each step's noise."""
    kept = torch.linspace(0.9, 0.1, 10).cumprod(0)
    for k in torch.linspace(9, 0, 3).long():
        x = x * kept[k].sqrt() + kept[t]
    return x


def written(x: Tensor, t: Tensor) -> Tensor:
    made = torch.zeros(4, 5, 3)
    made[t] = x[0]
    made[:, t] = 2
    made[t, 1:3, t] += 1
    made[..., t] = x[None, 0, :1, :1]
    made[torch.arange(2), t] = x[0, :2]
    made[3, t, :2] = made[0, t, 1:]
    return made


def fills_places(x: Tensor, _t: Tensor) -> tuple[Tensor, Tensor]:
    """As greedy suppression of boxes keeps a count of those that it has found."""
    kept, count = torch.zeros(8, dtype=torch.long), torch.zeros((), dtype=torch.long)
    for k in range(3):
        kept[count] = x[0, 0].argsort()[k]
        count = count + (x[0, k, 0] > 0)
    return kept, count


CASES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "schedule": schedule,
    "written": written,
    "fills places": fills_places,
    "each dimension": lambda x, t: (x[t], x[:, t], x[..., t], x[:, :, t], x[None, t]),
    "several": lambda x, t: (x[t, t], x[t, 1:3, t], x[0, t], x[t, ..., 1], x[t, None, :, t]),
    "beside tensors": lambda x, t: (x[t, torch.tensor([0, 2])], x[t][x[t] > 0].sum()),
    "negative": lambda x, t: x[:, t - 2],
    "of a maximum": lambda x, t: x.view(-1)[x.argmax()],
    "a copy that is changed": lambda x, t: x[t].clone().add_(1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_number_is_an_index(name: str) -> None:
    check(Of(CASES[name]), (torch.randn(2, 5, 3), torch.tensor(1)))


def test_other_numbers_in_each_call() -> None:
    model = Of(lambda x, t: x[:, t])
    fast = monotile.compile(model, (torch.randn(2, 5), torch.tensor(1)), target="cpu")
    x = torch.randn(2, 5)
    for k in (0, 4, -1):
        assert torch.equal(fast(x, torch.tensor(k)), x[:, k])
    with pytest.raises(IndexOutOfRangeError):
        fast(x, torch.tensor(5))


def test_a_cache_is_updated_where_it_lies() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(2, 6, 3))

        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            self.rows[:, at] = x
            return self.rows.sum(1)

    ours, theirs = Cache(), Cache()
    fast = monotile.compile(ours, (torch.zeros(2, 3), torch.tensor(0)), target="cpu")
    for k in (3, 1, 3):
        x = torch.randn(2, 3)
        torch.testing.assert_close(fast(x, torch.tensor(k)), theirs(x, torch.tensor(k)))
        torch.testing.assert_close(ours.rows, theirs.rows)


def test_what_would_be_a_view_is_not_written_into() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            made = torch.zeros(5, 3)
            made[t][1:].add_(x)
            return made

    with pytest.raises(
        CaptureError, match=r"test_tensor_indices.py:\d+, in .*write x\[k\] = value"
    ):
        capture(Writes(), (torch.randn(()), torch.tensor(1)))
