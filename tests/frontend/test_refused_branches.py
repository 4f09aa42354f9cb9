"""Choices by tensors' values that are refused, with the user's line."""

import re

import pytest
import torch
from torch import nn

from monotile.errors import CaptureError
from monotile.frontends.torch.export import export

FACTOR = 3


class Shapes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x[0]
        return x


class Counted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global FACTOR  # noqa: PLW0603
        if x.sum() > 0:
            FACTOR = 3
        return x * FACTOR


class Types(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x.half()
        return x


class Values(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        if x.sum() > 0:
            return x, "high"
        return x, "low"


class Structures(nn.Module):
    def forward(self, x: torch.Tensor) -> object:
        if x.sum() > 0:
            return {"x": x}
        return (x,)


class Raises(nn.Module):
    """By what another function does, which might not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.isnan().any():
            self.fail()
        return x + 1

    def fail(self) -> None:
        raise ValueError("not a number")


class Viewed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.cumsum(0)
        row = x[0]
        if x.sum() > 0:
            row += 1
            y = x.softmax(-1)
        else:
            y = x
        return x + y


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Shapes, r"one branch returns float32\[3\] on cpu, the other float32\[4, 3\]"),
        (Types, r"one branch returns float16.*the other float32"),
        (Values, "one branch returns 'high', the other 'low'"),
        (Structures, "results of different structure"),
        (Counted, r"assigns a global name.*torch\.where"),
        (Raises, r"value is True.*fails.*ValueError: not a number.*torch\._check"),
        (Viewed, "by a view made before it: make the view in that branch"),
    ],
)
def test_what_is_no_branch_is_an_error(
    model: type[nn.Module], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = model.forward.__code__
    with pytest.raises(CaptureError, match=words) as caught:
        export(model(), (torch.ones(4, 3),))
    assert re.search(r"test_refused_branches.py:\d+, in forward: +(if|while) x", str(caught.value))
    assert model.forward.__code__ is before
    assert not capfd.readouterr().err
