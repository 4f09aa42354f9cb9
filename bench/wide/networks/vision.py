"""Classifiers of images: convolutional ones and transformers of torchvision, and MLP-Mixer (Tolstikhin et al., 2021)."""

import importlib
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.wide.registry import NETWORKS, Network, Parts, network


def images(batch: int, size: int = 224) -> Tensor:
    return torch.randn(batch, 3, size, size)


def of_torchvision(name: str, size: int, options: dict[str, Any], batch: int) -> Parts:
    """A head of zeros, as untrained transformers have, would hide what comes before it: it gets random weights."""
    models: Any = importlib.import_module("torchvision.models")
    model: nn.Module = models.get_model(name, weights=None, **options)
    for part in model.modules():
        if isinstance(part, nn.Linear) and not part.weight.any():
            part.reset_parameters()
    return model, images(batch, size)


CONVOLUTIONAL: list[tuple[str, str, int, dict[str, Any]]] = [
    ("resnet18", "ResNet-18", 224, {}),
    ("resnet50", "ResNet-50", 224, {}),
    ("resnext50_32x4d", "ResNeXt-50 32x4d", 224, {}),
    ("vgg16", "VGG-16", 224, {"init_weights": False}),
    ("densenet121", "DenseNet-121", 224, {}),
    ("mobilenet_v2", "MobileNetV2", 224, {}),
    ("mobilenet_v3_large", "MobileNetV3-large", 224, {}),
    ("efficientnet_b0", "EfficientNet-b0", 224, {}),
    ("efficientnet_b4", "EfficientNet-b4", 380, {}),
    ("regnet_y_3_2gf", "RegNetY-3.2GF", 224, {}),
    ("convnext_tiny", "ConvNeXt-T", 224, {}),
    ("shufflenet_v2_x1_0", "ShuffleNetV2-1.0", 224, {}),
    ("squeezenet1_1", "SqueezeNet-1.1", 224, {}),
    ("inception_v3", "Inception-v3", 299, {"aux_logits": False, "init_weights": False}),
    ("maxvit_t", "MaxViT-T", 224, {}),
]
TRANSFORMERS: list[tuple[str, str, int, dict[str, Any]]] = [
    ("vit_b_16", "ViT-B/16", 224, {}),
    ("swin_t", "Swin-T", 224, {}),
    ("swin_v2_t", "SwinV2-T", 256, {}),
]
for _last, _table in ((True, CONVOLUTIONAL), (False, TRANSFORMERS)):
    for _name, _title, _size, _options in _table:
        _make = partial(of_torchvision, _name, _size, _options)
        NETWORKS[_name] = Network(_title, "vision", _make, _last, "torchvision")


@network("vision", "DeiT-B", library="transformers")
def deit_base(batch: int) -> Parts:
    """With a token of distillation."""
    hub: Any = importlib.import_module("transformers")
    return hub.DeiTModel(hub.DeiTConfig()), images(batch)


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, width: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = feed_forward(tokens, hidden[0])
        self.along = feed_forward(width, hidden[1])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm_2(x))


def feed_forward(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Mixer(nn.Module):
    """Patches of 16; B/16 has 12 layers of width 768."""

    def __init__(self, layers: int = 12, width: int = 768, tokens: int = 196) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.layers = nn.Sequential(*(MixerLayer(tokens, width, (384, 3072)) for _ in range(layers)))  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


@network("vision", "MLP-Mixer-B/16")
def mixer_b_16(batch: int) -> Parts:
    return Mixer(), images(batch)
