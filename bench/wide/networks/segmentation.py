"""Segmentation of images: DeepLabV3 and LR-ASPP of torchvision, SegFormer (Xie et al., 2021), U-Net (Ronneberger et al., 2015)."""

import importlib
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.wide.networks.vision import images, of_torchvision
from bench.wide.registry import NETWORKS, Network, Parts, network

WITHOUT: dict[str, Any] = {"weights_backbone": None}
for _name, _title in (
    ("deeplabv3_resnet50", "DeepLabV3 ResNet-50"),
    ("lraspp_mobilenet_v3_large", "LR-ASPP MobileNetV3"),
):
    _make = partial(of_torchvision, _name, 520, WITHOUT)
    NETWORKS[_name] = Network(_title, "segmentation", _make, True, "torchvision")


@network("segmentation", "SegFormer-b0", images=True, library="transformers")
def segformer_b0(batch: int) -> Parts:
    hub: Any = importlib.import_module("transformers")
    return hub.SegformerForSemanticSegmentation(hub.SegformerConfig()), images(batch, 512)


def pair(inside: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inside, out):
        conv = nn.Conv2d(channels, out, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Five resolutions, 64 to 1,024 channels, batch normalisation and padded convolutions, as it is used today."""

    def __init__(self, channels: tuple[int, ...] = (64, 128, 256, 512, 1024), classes: int = 2) -> None:  # fmt: skip
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(pair(*c) for c in zip((3, *channels), channels, strict=False))
        ups = list(zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(c, d, 2, 2) for c, d in ups)
        self.join = nn.ModuleList(pair(c, d) for c, d in ups)
        self.head = nn.Conv2d(channels[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for k, block in enumerate(self.down):
            x = block(self.pool(x) if k else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


@network("segmentation", "U-Net, 256²", images=True)
def unet(batch: int) -> Parts:
    return UNet(), images(batch, 256)
