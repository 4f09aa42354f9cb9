"""Image models on 224 x 224: ViT-B/16 (Dosovitskiy et al., 2020), CLIP's ViT-B/32 (Radford et al., 2021), Swin-B (Liu et al., 2021),
EfficientNet-b0 (Tan and Le, 2019), MobileNetV2 (Sandler et al., 2018), ResNeXt-101 64x4d (Xie et al., 2016), ResNet-18 and -50 (He et al.,
2015), ConvNeXt-T (Liu et al., 2022); SegFormer-b0 (Xie et al., 2021) on 512 x 512."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    ConvNextConfig,
    ConvNextForImageClassification,
    EfficientNetConfig,
    EfficientNetForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    SwinConfig,
    SwinModel,
    ViTConfig,
    ViTModel,
)

from bench.zoo.resnext import ResNeXt
from bench.zoo.weights import build, calibrate

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
LABELS: dict[str, Any] = {"num_labels": 1000}  # of ImageNet


def _images(batch: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, dtype=dtype)


def vit_base(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, layers: int = 12, **config: Any
) -> Made:  # fmt: skip
    """Patches of 16."""
    c = ViTConfig(image_size=image, num_hidden_layers=layers, **config)
    return build(lambda: ViTModel(c), dtype), (_images(batch, image, dtype),)


def clip_vision(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, layers: int = 12, **config: Any
) -> Made:  # fmt: skip
    """The image tower, patches of 32."""
    c = CLIPVisionConfig(image_size=image, num_hidden_layers=layers, **config)
    return build(lambda: CLIPVisionModel(c), dtype), (_images(batch, image, dtype),)


def swin_base(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, layers: int = 18, **config: Any
) -> Made:  # fmt: skip
    """Windows of 7. layers: of the third of the four stages; the others have two."""
    sizes = {"embed_dim": 128, "depths": [2, 2, layers, 2], "num_heads": [4, 8, 16, 32]} | config
    c = SwinConfig(image_size=image, **sizes)
    return build(lambda: SwinModel(c), dtype), (_images(batch, image, dtype),)


def resnext101(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, layers: int = 23, **config: Any
) -> Made:  # fmt: skip
    """64x4d. layers: blocks of the third of the four stages."""
    sizes: dict[str, Any] = {"blocks": (3, 4, layers, 3), "groups": 64, "width_per_group": 4}
    return convolutional(lambda: ResNeXt(**sizes | config), dtype, batch, image)


def resnet18(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, **config: Any
) -> Made:
    sizes: dict[str, Any] = {
        "depths": [2, 2, 2, 2],
        "hidden_sizes": [64, 128, 256, 512],
        "layer_type": "basic",
    }
    c = ResNetConfig(**LABELS | sizes | config)
    return convolutional(lambda: ResNetForImageClassification(c), dtype, batch, image)


def resnet50(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, **config: Any
) -> Made:
    c = ResNetConfig(**LABELS | config)
    return convolutional(lambda: ResNetForImageClassification(c), dtype, batch, image)


def convnext_tiny(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, **config: Any
) -> Made:
    c = ConvNextConfig(**LABELS | config)
    return build(lambda: ConvNextForImageClassification(c), dtype), (_images(batch, image, dtype),)


def segformer_b0(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 512, **config: Any
) -> Made:
    c = SegformerConfig(**config)
    return convolutional(lambda: SegformerForSemanticSegmentation(c), dtype, batch, image)


def efficientnet_b0(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, **config: Any
) -> Made:
    sizes: dict[str, Any] = {
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
        "hidden_dim": 1280,
    }
    c = EfficientNetConfig(image_size=image, **LABELS | sizes | config)
    return convolutional(lambda: EfficientNetForImageClassification(c), dtype, batch, image)


def mobilenet_v2(
    dtype: torch.dtype = torch.float32, *, batch: int = 1, image: int = 224, **config: Any
) -> Made:
    c = MobileNetV2Config(image_size=image, **LABELS | config)
    return convolutional(lambda: MobileNetV2ForImageClassification(c), dtype, batch, image)


def convolutional(
    make: Callable[[], nn.Module],
    dtype: torch.dtype,
    batch: int,
    image: int,
    run: Callable[[Any, torch.Tensor], object] = nn.Module.__call__,
) -> Made:
    """With calibrated batch normalisation. run: calls the model so that all of it runs, whatever the images."""
    model = build(make, torch.float32)
    calibrate(model, lambda: run(model, _images(2, image, torch.float32)))
    return model.to(dtype), (_images(batch, image, dtype),)
