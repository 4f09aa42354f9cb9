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


class Clusters(nn.Module):
    """Fails if no cluster takes a row: what the last `if` of the loop says decides that only together with those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: T, label: T) -> T:
        out, used = torch.zeros(x.shape[0]), 0
        for low in (0, 2, 4):
            inside = (label >= low) & (label < low + 2)
            rows = inside.nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            out.index_copy_(0, rows, self.layer(x[rows]).sum(1) + label[inside])
            used += rows.numel()
        if used != x.shape[0]:
            raise ValueError("a label of no cluster")
        return out


@pytest.mark.parametrize("label", [[0, 2, 4, 5], [4, 4, 5, 5], [0, 1, 1, 0], [2, 5, 5, 2]])
def test_a_check_that_depends_on_several_conditions(label: list[int]) -> None:
    check(Clusters().eval(), (torch.randn(4, 3), torch.tensor(label)))


class Adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 6], div_value=2.0)

    def forward(self, x: T, label: T) -> tuple[T, T, T]:
        found = self.loss(x, label)
        return self.loss.predict(x), found.output, found.loss


@pytest.mark.wide
@pytest.mark.parametrize("label", [[0, 4, 8], [7, 7, 7]])
def test_adaptive_softmax(label: list[int]) -> None:
    check(Adaptive().eval(), (torch.randn(3, 8), torch.tensor(label)))


class Described(nn.Module):
    """Numbers of tensors in the texts of errors."""

    def forward(self, x: T) -> T:
        bad = x.isnan()
        if bad.any():
            raise ValueError(f"{bad.sum().item()} of {x.numel()} elements are NaN")
        if (x.abs() > 100).any():
            text = f"too large: {x.abs().max().item():.3f}"
            raise ValueError(text)
        return x * 2


def test_an_error_with_numbers_in_its_text() -> None:
    compiled = monotile.compile(Described().eval(), (torch.randn(3),), target="cpu")
    x = torch.randn(3)
    assert torch.equal(compiled(x), x * 2)
    for value in (float("nan"), 200.0):
        with pytest.raises(monotile.MonotileError, match=r"if (bad|\(x)"):
            compiled(torch.full((3,), value))
