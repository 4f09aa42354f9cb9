"""Which tensors have their channels last: with what has one element where others have channels, and without heads of attention."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute, Program, statements
from monotile.pipeline import transform
from monotile.targets.cuda.target import cuda_target
from monotile.transform.layout.channels_last import assign_layouts


def arranged(model: nn.Module, *shape: int) -> dict[str, tuple[int, ...]]:
    """The shapes of what the model computes in its layouts, by name."""
    captured = capture(model.half().eval(), (torch.randn(shape).half(),))
    program, _ = transform(captured.program, captured.constants, Options())
    new: Program = assign_layouts(program, cuda_target("sm_90a"))
    return {s.out.name: s.out.shape for s in statements(new.body) if isinstance(s, Compute)}


class Normalised(nn.Module):
    """A convolution's channels, each place's divided by their norm, for another convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.normalize(self.first(x), dim=1))


def test_what_a_place_has_one_of_lies_as_the_places_do() -> None:
    shapes = arranged(Normalised(), 2, 16, 5, 6)
    assert shapes["div"] == (2, 5, 6, 32)
    assert {n: s for n, s in shapes.items() if 1 in s[1:]} == {
        "linalg_vector_norm_sum": (2, 5, 6, 1),
        "clamp_min": (2, 5, 6, 1),
    }


class StateSpace(nn.Module):
    """Four heads of 16, whose steps come from the same product as the channels of a convolution over time (as in Mamba-2)."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(32, 64 + 32 + 4), nn.Linear(64, 32)
        self.conv = nn.Conv1d(96, 96, 4, padding=3, groups=96)

    def forward(self, x: Tensor) -> Tensor:
        mixed, steps = self.project(x).split([96, 4], -1)
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        values, keys = mixed.split([64, 32], -1)
        scores = torch.tanh(keys @ keys.transpose(1, 2))[:, None] * steps.transpose(1, 2)[..., None]
        heads = values.unflatten(-1, (4, 16))
        y = (scores @ heads.transpose(1, 2)).transpose(1, 2) + heads
        return self.out(F.rms_norm(y.flatten(2) * torch.sigmoid(values), (64,)))


def test_what_a_product_makes_for_each_head_has_its_columns_last() -> None:
    shapes = arranged(StateSpace(), 2, 24, 32)
    heads = [s for s in shapes.values() if 4 in s]
    assert heads
    assert all(s[-1] != 4 for s in heads if 16 in s)
