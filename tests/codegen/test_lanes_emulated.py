"""Vectors whose lanes take their elements from one aligned vector in any order, as their CUDA kernels."""

import pytest
import torch
from torch import nn

from tests.codegen.emulate_model import Emulated
from tests.models.sparse_networks import inputs

T = torch.Tensor


class Assigned(nn.Module):
    """Rotary positions of neighbouring pairs, written into slices."""

    def forward(self, x: T, cos: T, sin: T) -> T:
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        out = torch.empty_like(x)
        out[..., 0::2] = a * cos[..., 0::2] - b * sin[..., 1::2]
        out[..., 1::2] = a * sin[..., 1::2] + b * cos[..., 0::2]
        return out


class Stacked(nn.Module):
    """The same, stacked."""

    def forward(self, x: T, cos: T, sin: T) -> T:
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return x * cos + torch.stack([-b, a], -1).flatten(-2) * sin


class Axial(nn.Module):
    """The angles of a part of the pairs are those of the row, of the others of the column."""

    def forward(self, x: T, cos: T, sin: T) -> T:
        rows, columns = cos[:5].repeat_interleave(4, 0), cos[:4].repeat(5, 1)
        both = torch.cat([rows[:, :11], columns[:, 11:]], -1)
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        out = torch.empty_like(x)
        out[..., 0::2] = a * both[:, 0::2] - b * sin[..., 1::2]
        out[..., 1::2] = b * both[:, 0::2]
        return out


class Every(nn.Module):
    """Every second and every fourth element, and those next to them."""

    def forward(self, x: T, cos: T, sin: T) -> T:
        return x[..., ::2] + cos[..., 1::2] * sin[..., ::2] + x[..., 3::4].repeat_interleave(2, -1)


@pytest.mark.parametrize("model", [Assigned(), Stacked(), Axial(), Every()], ids=lambda m: type(m).__name__)  # fmt: skip
def test_lanes(model: nn.Module) -> None:
    torch.manual_seed(0)
    x, cos, sin = torch.randn(3, 20, 32), torch.randn(20, 32), torch.randn(20, 32)
    want = model(x, cos, sin)
    halves = (x.half(), cos.half(), sin.half())
    (mine,) = Emulated(model, halves)(*halves)
    torch.testing.assert_close(mine.float(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["narrow blocks", "few columns", "sixteen rows"])
def test_where_data_say_it_lies(name: str) -> None:
    """Neighbours of what data choose are checked one by one."""
    model, args = inputs(name)
    want = model.float()(*args)
    halves = tuple(x.half() if x.is_floating_point() else x for x in args)
    (mine,) = Emulated(model.half(), halves)(*halves)
    torch.testing.assert_close(mine.float(), want, rtol=2e-2, atol=2e-2)
