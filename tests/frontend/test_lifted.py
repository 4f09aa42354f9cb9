"""A buffer that the model reaches by another way than its name: torch.export lifts it as a constant as well."""

import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture


class Store:
    """No module: what it holds are constants to torch.export."""

    def __init__(self) -> None:
        self.rows = torch.zeros(4, 3)


class Remembers(nn.Module):
    """As transformers' modules with a static cache: the store's tensor is registered, and updated through the store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.register_buffer("rows", self.store.rows, persistent=False)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.store.rows.index_copy_(0, at, x)
        return self.store.rows.sum(0)


def test_the_buffer_is_the_state() -> None:
    captured = capture(Remembers(), (torch.ones(1, 3), torch.tensor([2])))
    assert captured.program.states == ("rows",)


def test_it_is_updated_where_it_lies() -> None:
    ours, theirs = Remembers(), Remembers()
    fast = monotile.compile(ours, (torch.ones(1, 3), torch.tensor([2])), target="cpu")
    for k in (2, 0, 2):
        x = torch.randn(1, 3)
        torch.testing.assert_close(fast(x, torch.tensor([k])), theirs(x, torch.tensor([k])))
        torch.testing.assert_close(ours.rows, theirs.rows)


class Counts(nn.Module):
    """The store has a dimension: tracing asks it for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.store.rows = torch.tensor(0)
        self.register_buffer("count", self.store.rows, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.store.rows.copy_(x[0])
        return x + torch.ones((3, 3)).permute((1 + self.store.rows, 0)).sum(0)


def test_a_number_that_each_call_changes() -> None:
    with pytest.raises(CaptureError, match=r"each call changes, at test_lifted\.py.*torch\.ones"):
        monotile.compile(Counts(), (torch.ones(3, dtype=torch.int64),), target="cpu")
