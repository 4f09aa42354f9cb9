"""Which tensors have their channels last: with what has one element where others have channels, and without heads of attention."""

import pytest
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


class Excited(nn.Module):
    """Two convolutions, and means of images whose channels are scaled first, each image's by its own factors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.scale = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.second(F.relu(self.first(x))))
        return (y * torch.sigmoid(self.scale(y.mean((2, 3))))[:, :, None, None]).mean((2, 3))


def test_a_scaled_mean_of_whole_images_is_no_window_of_a_batch() -> None:
    shapes = arranged(Excited(), 4, 16, 6, 7)
    assert [s for s in shapes.values() if len(s) == 4 and s[1:3] == (6, 7)]
    assert all(s[-1] in (16, 32) for s in shapes.values() if len(s) == 4 and 6 in s and 7 in s)


class Pooled(nn.Module):
    """Windows over the places of each head's columns (as in MViT), keys of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.width = nn.Linear(32, 2 * 3 * width), width
        self.query = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.key = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        heads = self.project(x).view(n, 48, 3, 2, self.width).permute(2, 0, 3, 1, 4)
        images = (t.reshape(2 * n, 6, 8, self.width).permute(0, 3, 1, 2) for t in heads[:2])
        q, k = (f(t).flatten(2).transpose(1, 2) for f, t in zip((self.query, self.key), images, strict=True))  # fmt: skip
        scores = (q @ k.transpose(1, 2)).softmax(-1)
        return scores @ heads[2].reshape(2 * n, 48, self.width)


def test_windows_over_each_head_have_its_columns_last_and_odd_ones_too() -> None:
    for width in (16, 19):
        shapes = arranged(Pooled(width), 2, 48, 32)
        windows = [s for n, s in shapes.items() if n.startswith("conv2d")]
        assert windows
        assert all(s == (4, 6, 8, width) for s in windows)


class Classifier(nn.Module):
    """Two convolutions, and a linear layer over all that the second makes, channels before places."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.score = nn.Linear(32 * 5 * 6, 10)
        self.third = nn.Conv2d(32, 8, 3) if again else None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = F.relu(self.second(F.relu(self.first(x))))
        score = self.score(y.flatten(1))
        return (score,) if self.third is None else (score, self.third(y))


def test_a_row_of_all_places_has_them_behind_its_channels() -> None:
    shapes = arranged(Classifier(again=False), 2, 16, 5, 6)
    assert shapes["relu"] == (2, 5, 6, 32)
    assert shapes["relu_1"] == (2, 32, 5, 6)


def test_not_so_where_a_convolution_reads_it_too() -> None:
    assert arranged(Classifier(again=True), 2, 16, 5, 6)["relu_1"] == (2, 5, 6, 32)


class Blurred(nn.Module):
    """Windows of each channel of an image that goes on beyond its ends in some way, between two convolutions (as in TResNet)."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.first, self.last, self.mode = nn.Conv2d(16, 32, 3), nn.Conv2d(32, 16, 3), mode
        self.blur = nn.Conv2d(32, 32, 3, stride=2, groups=32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blur(F.pad(F.relu(self.first(x)), (1, 1, 1, 1), mode=self.mode)))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_windows_over_what_is_folded_back_have_their_channels_last(mode: str) -> None:
    shapes = arranged(Blurred(mode), 2, 16, 14, 18)
    assert shapes["relu"] == (2, 12, 16, 32)
    assert shapes["conv2d_1"] == (2, 6, 8, 32)


class Patches(nn.Module):
    """Patches of an image as rows, which are normalised; without or with a token of their own in front."""

    def __init__(self, *, token: bool) -> None:
        super().__init__()
        self.project, self.norm = nn.Conv2d(3, 32, 4, stride=4), nn.LayerNorm(32)
        self.token = nn.Parameter(torch.randn(1, 1, 32)) if token else None
        self.places = nn.Parameter(torch.randn(1, 20 + token, 32))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.project(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            rows = torch.cat([self.token.expand(x.shape[0], -1, -1), rows], 1)
        return self.norm(rows + self.places)


def test_products_that_become_rows_have_their_columns_last() -> None:
    for token in (False, True):
        shapes = arranged(Patches(token=token), 2, 3, 16, 20)
        made = [s for n, s in shapes.items() if n.startswith("conv2d")]
        assert made
        assert all(s[-1] == 32 for s in made)


class Positions(nn.Module):
    """A grouped convolution over time with a normalised weight of many places, as in wav2vec 2.0."""

    def __init__(self) -> None:
        super().__init__()
        conv = nn.Conv1d(64, 64, 48, padding=24, groups=4)
        self.conv = nn.utils.parametrizations.weight_norm(conv, dim=2)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.linear(x).transpose(1, 2))


def test_a_computed_weight_of_many_places_is_made_of_a_copy() -> None:
    shapes = arranged(Positions(), 1, 40, 64)
    assert shapes["_weight_norm"] == (64, 48, 16)
    assert [s for n, s in shapes.items() if n.endswith("original1_by_1")] == [(64, 48, 16)]
