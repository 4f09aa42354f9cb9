"""SkipNet (Wang et al., ECCV 2018): a ResNet (He et al., 2015) whose blocks gates leave out, by the image."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bench.zoo.resnext import Bottleneck
from bench.zoo.vision import convolutional

WIDTH = 10  # of the gates' recurrent state


class Gate(nn.Module):
    """Whether a block is wanted: what it is given, pooled and projected, and a recurrent state that all gates share."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.projection, self.score = nn.Linear(channels, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor, cell: nn.Module) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """A scalar bool, and the cell's new states [1, WIDTH]. x: [1, channels, height, width]."""
        h, c = cell(self.projection(x.mean((2, 3))), (h, c))
        return self.score(h).squeeze() > 0, h, c


class SkipNet(nn.Module):
    """For one image. blocks: of each stage, whose first one is never left out. planes: a quarter of the first stage's channels."""

    def __init__(self, blocks: Sequence[int], planes: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, planes, 7, 2, 3, bias=False), nn.BatchNorm2d(planes), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )  # fmt: skip
        self.firsts, self.gates, self.rest = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        channels = planes
        for i, count in enumerate(blocks):
            width, stride = planes << i, 2 if i > 0 else 1
            self.firsts.append(Bottleneck(channels, width, stride, 1, 64))
            channels = 4 * width
            self.gates.append(nn.ModuleList(Gate(channels) for _ in range(count - 1)))
            self.rest.append(nn.ModuleList(Bottleneck(channels, width, 1, 1, 64) for _ in range(count - 1)))  # fmt: skip
        self.head = nn.Linear(channels, classes)

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gates' state before the first block."""
        return x.new_zeros(1, WIDTH), x.new_zeros(1, WIDTH)

    def finish(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3)))

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        h, c = self.start(x)
        for first, gates, blocks in zip(self.firsts, self.gates, self.rest, strict=True):
            x = first(x)
            for gate, block in zip(gates, blocks, strict=True):
                wanted, h, c = gate(x, h, c, self.cell)
                x = torch.cond(wanted, block, torch.clone, (x,))
        return self.finish(x)

    def every(self, images: Tensor) -> Tensor:
        """All blocks, for any number of images."""
        x = self.stem(images)
        for first, blocks in zip(self.firsts, self.rest, strict=True):
            x = first(x)
            for block in blocks:
                x = block(x)
        return self.finish(x)


def skipnet(
    dtype: torch.dtype = torch.float32, *, blocks: Sequence[int] = (3, 4, 6, 3), planes: int = 64, image: int = 224, classes: int = 1000
) -> tuple[nn.Module, tuple[Tensor, ...]]:  # fmt: skip
    """ResNet-50's shape. Of its 12 blocks that may be left out, about half are."""

    def make() -> SkipNet:
        model = SkipNet(blocks, planes, classes)
        for gates in model.gates:
            for gate in gates:  # scores of both signs, clear of zero
                nn.init.normal_(gate.score.weight, std=2.0)
        return model

    return convolutional(make, dtype, 1, image, SkipNet.every)
