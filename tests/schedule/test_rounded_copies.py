"""Copies of factors of TF32 that products would round chunk by chunk."""

import pytest
import torch
from torch import nn

from monotile.config import Options
from monotile.ir.program import defined
from monotile.kernels.draft import Context
from monotile.pipeline import transform
from monotile.schedule.rounded_copies import copy_rounded
from monotile.targets.target import Target
from tests.schedule import programs as p
from tests.transform.test_round_factors import capture


def copied(model: nn.Module, x: torch.Tensor, target: Target) -> list[str]:
    """By round_factors and what follows it, of what layouts would leave as it is."""
    found = capture(model, x)
    program, _ = transform(found.program, found.constants, Options())
    after = copy_rounded(program, target, Context.of(program, target))
    return [t.name for s in after.body for t in defined(s) if t.name.endswith("_rounded")]


@pytest.mark.parametrize(("images", "names"), [(16, ["x_rounded", "p_weight_rounded"]), (0, [])])
def test_what_pays(images: int, names: list[str]) -> None:
    """Of channels last nothing is copied into another order, in which it would be rounded."""
    size = 64 if images else 8
    model = nn.Conv2d(256, 256, 3, padding=1).to(memory_format=torch.channels_last)
    x = torch.randn(max(images, 1), 256, size, size).to(memory_format=torch.channels_last)
    assert len(copied(model, x, p.H100)) == len(names)
