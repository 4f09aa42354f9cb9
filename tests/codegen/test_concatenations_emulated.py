"""Concatenations read in vectors, on the emulator against PyTorch in float64."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Dense(nn.Module):
    """Every layer reads all before it, as in DenseNet; the last one reads all of them, padded."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        sums = [sum(channels[: k + 1]) for k in range(len(channels))]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in zip(sums, channels[1:], strict=False))  # fmt: skip
        self.norm, self.last = nn.BatchNorm2d(sums[-1]), nn.Conv2d(sums[-1], 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, 1)).relu())
        return self.last(F.relu(self.norm(torch.cat(parts, 1))))


def check(model: nn.Module, *args: torch.Tensor) -> Emulated:
    run = Emulated(model.eval(), args, workers=5)
    (found,) = run(*args)
    right = model.double()(*(x.double() if x.is_floating_point() else x for x in args))
    error = (found.double() - right).norm() / right.norm()
    assert error < (2e-3 if args[0].dtype is torch.float16 else 1e-5)
    return run


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("channels", [(16, 8, 24, 8, 8), (12, 20, 4, 8), wide((16,) * 9)])
def test_dense_layers(channels: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check(Dense(channels).to(dtype), torch.randn(2, channels[0], 6, 8).to(dtype))


class Joined(nn.Module):
    """Rows of several tensors, of which data chooses some, with zeros beside them."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        below = F.pad(torch.cat([b, a[:, :16]], 0).exp(), (0, 16))
        return torch.cat([a, F.pad(b[at], (8, 8)), below], 0)


def test_choices_by_data_within_others() -> None:
    torch.manual_seed(0)
    check(Joined(), torch.randn(3, 32), torch.randn(5, 16), torch.tensor([4, 0, 2]))


class Pooled(nn.Module):
    """A signal beside its mean and a value of each row, which are the same at all times."""

    def forward(self, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        mean = x.mean(2, keepdim=True).expand_as(x)
        return torch.cat([x, mean, level[:, :, None].expand_as(x)], 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_parts_that_are_one_element_for_all_lanes(dtype: torch.dtype) -> None:
    run = check(Pooled(), torch.randn(3, 35, 60).to(dtype), torch.randn(3, 35).to(dtype))
    assert "mt::repeated<" in run.source.text


class Heads(nn.Module):
    """Scores of 7 classes for the boxes of three feature maps, one after the other, as a detector gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Conv2d(16, boxes * 7, 1) for boxes in (2, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: list[torch.Tensor] = []
        for head, size in zip(self.heads, (24, 19, 6), strict=True):
            found = head(x[..., :size, :size])
            scores.append(found.unflatten(1, (-1, 7)).permute(0, 3, 4, 1, 2).flatten(1, 3))
        return torch.cat(scores, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_odd_rows_of_several_are_one_load(dtype: torch.dtype) -> None:
    """From one of three addresses, each at one stride whatever the shape behind it."""
    torch.manual_seed(0)
    run = check(Heads().to(dtype), torch.randn(2, 16, 24, 24).to(dtype))
    body = run.source.text[run.source.text.index("void stage_cat(") :]
    body = body[: body.index("\n}\n")]
    assert body.count("mt::load<1>(at") == 1
    assert body.count("mt::load") == 1


class Streams(nn.Module):
    """Rows beside sums of a row of one table and of rows of another that data chooses, as the streams of ProphetNet's decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.streams, self.places = nn.Embedding(2, 64), nn.Embedding(40, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        sums = [(self.streams.weight[k] + self.places(at)) for k in range(2)]
        return self.norm(torch.cat([x, *sums], 1))


def test_sums_within_a_concatenation_are_loaded_once() -> None:
    torch.manual_seed(0)
    check(Streams().half(), torch.randn(1, 16, 64).half(), torch.arange(16)[None] + 20)


class Replaced(nn.Module):
    """Columns of a product are replaced where it is made, and it is read as it was as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(72, 24)
        self.other = nn.Parameter(torch.randn(17, 16))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = self.layer(x)
        b = a.clone()
        b[..., 8:] = self.other
        return torch.stack((a, b, y, b), 0)


def test_a_part_that_is_in_registers() -> None:
    """A choice between it and a pack from memory is no pack (fuzz seed 710221)."""
    torch.manual_seed(0)
    check(Replaced().half(), torch.randn(17, 72).half(), torch.randn(17, 24).half())


class Norms(nn.Module):
    """Numbers side by side (fuzz seed 710188)."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = (torch.linalg.vector_norm(v, 0.5, dim=(0, 1), keepdim=True) for v in (x, y))
        least, place = torch.sort(b, dim=-2)
        return torch.cat((a, least, place, place), -1)


def test_parts_without_dimensions() -> None:
    check(Norms(), torch.randn(2, 7), torch.randn(3, 5))


class Chosen(nn.Module):
    """A stack of what data choose from a tensor, and of the tensor itself, which is read at other places without asking data."""

    def forward(self, x: torch.Tensor, given: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        y = torch.where(given, F.adaptive_max_pool2d(x, 1), x)
        return torch.stack((y, y, y, x, other), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_read_where_data_say_so_and_elsewhere(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, other = torch.randn(2, 2, 6, 9, 4).to(dtype).unbind()
    check(Chosen(), x, torch.rand(2, 6, 1, 1) > 0.5, other)
