"""Networks with operands that are mostly zero, as `monotile.sparse` says."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import monotile


class Rows(nn.Module):
    """Rows of 32 share a mask of each call."""

    def forward(self, x: Tensor, mask: Tensor, w: Tensor) -> Tensor:
        return (x * monotile.sparse(mask).repeat_interleave(32, 0)) @ w


class Blocks(nn.Module):
    """A weight in blocks."""

    def __init__(self, block: tuple[int, int]) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, mask: Tensor, w: Tensor) -> Tensor:
        kept = monotile.sparse(mask)
        for d, n in enumerate(self.block):
            kept = kept.repeat_interleave(n, d)
        return nn.functional.linear(x, w * kept)


class Linear(nn.Module):
    """The same for a layer, whose weight lies along its inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(256, 80)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x * monotile.sparse(mask).repeat_interleave(32, 0))


class Stated(nn.Module):
    """Whatever is zero of the operand itself."""

    def __init__(self, grain: tuple[int, int]) -> None:
        super().__init__()
        self.grain = grain

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return monotile.sparse(x, self.grain) @ w


class Activations(nn.Module):
    """Layers whose activations are zero in whole columns of 16 rows, of sequences."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.ModuleList(nn.Linear(64, 256) for _ in range(layers))
        self.second = nn.ModuleList(nn.Linear(256, 64) for _ in range(layers))

    def forward(self, x: Tensor, alive: Tensor) -> Tensor:
        for up, down in zip(self.first, self.second, strict=True):
            hidden = torch.relu(up(x)) * alive[:, None]
            x = x + down(monotile.sparse(hidden, (16, 1)))
        return x


def _random(shape: Sequence[int], share: float) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) < share


def _with_an_empty_row(mask: Tensor) -> Tensor:
    mask[1] = False
    return mask


NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "rows": lambda: (Rows(), (torch.randn(96, 256), _with_an_empty_row(_random((3, 256), 0.1)), torch.randn(256, 80))),
    "blocks": lambda: (Blocks((32, 32)), (torch.randn(64, 256), _with_an_empty_row(_random((4, 8), 0.3)), torch.randn(128, 256))),
    "narrow blocks": lambda: (Blocks((16, 4)), (torch.randn(40, 256), _random((8, 64), 0.2), torch.randn(128, 256))),
    "stated": lambda: (Stated((32, 1)), (torch.randn(64, 256) * _random((2, 256), 0.1).repeat_interleave(32, 0), torch.randn(256, 48))),
    "short rows": lambda: (Stated((16, 8)), (torch.randn(32, 160) * _random((2, 20), 0.1).repeat_interleave(16, 0).repeat_interleave(8, 1), torch.randn(160, 24))),
    "few columns": lambda: (Stated((16, 8)), (torch.randn(48, 128) * _random((3, 16), 0.2).repeat_interleave(16, 0).repeat_interleave(8, 1), torch.randn(128, 16))),
    "everything": lambda: (Stated((32, 2)), (torch.randn(64, 256), torch.randn(256, 48))),
    "linear": lambda: (Linear(), (torch.randn(64, 256), _random((2, 256), 0.1))),
    "sequences": lambda: (Activations(), (torch.randn(3, 32, 64), _random((3, 256), 0.15).float())),
}  # fmt: skip
# Lists that all rows of a product share.
ONE_LIST: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "sixteen rows": lambda: (Stated((16, 8)), (torch.randn(16, 128) * _random((1, 16), 0.3).repeat_interleave(8, 1), torch.randn(128, 16))),
    "forty rows": lambda: (Blocks((16, 8)), (torch.randn(40, 160), _random((1, 20), 0.9), torch.randn(16, 160))),
    "four rows": lambda: (Stated((4, 8)), (torch.randn(4, 128) * _random((1, 16), 0.3).repeat_interleave(8, 1), torch.randn(128, 16))),
}  # fmt: skip


def inputs(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network of that name, in eval mode, and arguments."""
    torch.manual_seed(0)
    model, args = (NETWORKS | ONE_LIST)[name]()
    return model.eval().requires_grad_(False), args
