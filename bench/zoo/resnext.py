"""ResNeXt (Xie et al., 2016), with torchvision's parameter names and shapes: its checkpoints fit."""

from collections.abc import Sequence

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1, grouped 3x3, 1x1, and what they are added to."""

    def __init__(
        self, channels: int, planes: int, stride: int, groups: int, width_per_group: int
    ) -> None:
        super().__init__()
        width, out = planes * width_per_group // 64 * groups, 4 * planes
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        # A trained block adds a fraction of what it is given; at 1, float32's errors grow tenfold over the network.
        nn.init.constant_(self.bn3.weight, 0.3)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != out:
            shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNeXt(nn.Module):
    """blocks: of each stage. planes: a quarter of the first stage's channels, doubled with every stage."""

    def __init__(
        self,
        blocks: Sequence[int],
        groups: int,
        width_per_group: int,
        classes: int = 1000,
        planes: int = 64,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, planes, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = planes
        self.stages = [f"layer{i + 1}" for i in range(len(blocks))]
        for i, name in enumerate(self.stages):
            layer: list[nn.Module] = []
            for j in range(blocks[i]):
                stride = 2 if i > 0 and j == 0 else 1
                layer.append(Bottleneck(channels, planes << i, stride, groups, width_per_group))
                channels = 4 * planes << i
            setattr(self, name, nn.Sequential(*layer))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))
