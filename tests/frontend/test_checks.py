"""Checks of data that a model writes as `if ...: raise`: each call makes them."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

import monotile
from monotile.errors import IndexOutOfRangeError
from tests.frontend.against import check
from tests.frontend.checking import Checks

T = torch.Tensor


def test_a_call_that_fails_a_check() -> None:
    model, x = Checks().eval(), torch.linspace(0, 1, 4)
    compiled = monotile.compile(model, (x,))
    torch.testing.assert_close(compiled(x + 1), model(x + 1))
    for wrong, line in (
        (x * torch.nan, "isnan"),
        (x.flip(0), "ordered"),
        (x * 200, "out|x.max|x.min"),
    ):
        with pytest.raises(IndexOutOfRangeError, match=line):
            compiled(wrong)


def test_checks_behind_a_choice() -> None:
    check(Checks(asks=True).eval(), (torch.linspace(0, 1, 4),))
    check(Checks(asks=True).eval(), (torch.linspace(-1, 0, 4),))


class Policy(nn.Module):
    """`torch.distributions` checks what it is given. Dynamo, once it has run, has this off by default."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: T, at: T) -> tuple[T, ...]:
        found = Categorical(logits=self.layer(x), validate_args=True)
        near = Normal(x, x.exp(), validate_args=True)
        return found.log_prob(at), found.entropy(), near.log_prob(x + 1).sum(-1)


def test_distributions() -> None:
    model, at = Policy().eval(), torch.tensor([0, 2])
    check(model, (torch.randn(2, 4), at))
    compiled = monotile.compile(model, (torch.randn(2, 4), at))
    with pytest.raises(IndexOutOfRangeError, match=r"Categorical|Normal|found"):
        compiled(torch.full((2, 4), torch.nan), at)
