"""Detection of objects, without the lists of boxes that follow: RetinaNet and SSD (backbone and heads) of torchvision, DETR (Carion et
al., 2020), YOLOS (Fang et al., 2021)."""

import importlib
from typing import Any

from torch import Tensor, nn

from bench.wide.networks.vision import images
from bench.wide.registry import Parts, network


class Heads(nn.Module):
    """Backbone and heads of a detector of torchvision; classes and boxes of all anchors."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.head(list(self.backbone(x).values()))


def detector(name: str) -> Heads:
    models: Any = importlib.import_module("torchvision.models")
    return Heads(models.get_model(name, weights=None, weights_backbone=None))


@network("detection", "RetinaNet ResNet-50", images=True, library="torchvision")
def retinanet(batch: int) -> Parts:
    return detector("retinanet_resnet50_fpn_v2"), images(batch, 512)


@network("detection", "SSD300 VGG-16", images=True, library="torchvision")
def ssd300(batch: int) -> Parts:
    return detector("ssd300_vgg16"), images(batch, 300)


@network("detection", "DETR ResNet-50, 512²", images=True, library="transformers")
def detr(batch: int) -> Parts:
    hub: Any = importlib.import_module("transformers")
    backbone = hub.ResNetConfig(out_features=["stage4"])
    config = hub.DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone)  # fmt: skip
    return hub.DetrForObjectDetection(config), images(batch, 512)


@network("detection", "YOLOS-tiny, 512²", library="transformers")
def yolos_tiny(batch: int) -> Parts:
    hub: Any = importlib.import_module("transformers")
    sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
    config = hub.YolosConfig(image_size=[512, 512], use_mid_position_embeddings=False, **sizes)
    return hub.YolosForObjectDetection(config), images(batch, 512)
