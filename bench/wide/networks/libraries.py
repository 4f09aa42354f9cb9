"""Networks of other libraries as they come, which nothing here was written for, at published sizes: object detection (ultralytics), image
restoration (spandrel), graphs (torch_geometric), sound (torchaudio, demucs, encodec), diffusion transformers and U-Nets (diffusers).
They are timed only where the domain or a network of it is asked for."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.wide.registry import NETWORKS, Network, Parts

DOMAIN = "libraries"


class Called(nn.Module):
    """`model` with what `more` makes of the arguments, its first result if it has several."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *args: Tensor) -> Any:
        found = self.call(self.model, *args)
        return found[0] if isinstance(found, tuple) else found


def first(model: nn.Module, *args: Tensor) -> Any:
    return model(*args)


def _add(
    name: str, library: str, make: Callable[[int], Parts], images: bool = False, dtypes: tuple[str, ...] = ("float16", "float32")
) -> None:  # fmt: skip
    title = name.split("_", 1)[1]
    NETWORKS[name] = Network(title, DOMAIN, make, images, library, dtypes)


def _restored(kind: str, name: str, size: int) -> None:
    def make(batch: int) -> Parts:
        module = importlib.import_module(f"spandrel.architectures.{kind}")
        return getattr(module, name)(), torch.rand(batch, 3, size, size)

    _add(f"spandrel_{name.lower()}", "spandrel", make, images=True)


for _kind, _name, _size in (
    ("ESRGAN", "ESRGAN", 128), ("NAFNet", "NAFNet", 256), ("PLKSR", "RealPLKSR", 128), ("Compact", "Compact", 256), ("DITN", "DITN", 128),
    ("SCUNet", "SCUNet", 128), ("OmniSR", "OmniSR", 128), ("DAT", "DAT", 64), ("RetinexFormer", "RetinexFormer", 256), ("FDAT", "FDAT", 64),
    ("MoSR", "MoSR", 128), ("RealCUGAN", "UpCunet2x", 128),
):  # fmt: skip
    _restored(_kind, _name, _size)


def _detects(name: str, kind: str = "DetectionModel") -> None:
    def make(batch: int) -> Parts:
        tasks = importlib.import_module("ultralytics.nn.tasks")
        return Called(getattr(tasks, kind)(f"{name}.yaml", verbose=False), first), torch.randn(batch, 3, 640, 640)  # fmt: skip

    _add(f"ultralytics_{name}", "ultralytics", make, images=True)


for _name in ("yolov5s", "yolov8n", "yolov8m", "yolov9t", "yolov10n", "yolo11n", "yolo11m", "yolo12n", "yolo26n"):  # fmt: skip
    _detects(_name)
_detects("yolov8n-seg", "SegmentationModel")
_detects("rtdetr-resnet50", "RTDETRDetectionModel")

CORA = 2708, 10_556, 1433, 7  # nodes, edges, features, classes of the citation graph Cora


def _graph(name: str, **more: Any) -> None:
    nodes, edges, features, classes = CORA

    def make(batch: int) -> Parts:
        found = getattr(importlib.import_module("torch_geometric.nn"), name)
        links = torch.randint(0, nodes, (batch, 2, edges))
        links = (links + nodes * torch.arange(batch)[:, None, None]).transpose(0, 1).flatten(1)
        return found(features, 64, 2, classes, **more), torch.rand(batch * nodes, features), links

    _add(f"geometric_{name.lower()}", "torch_geometric", make)


for _name in ("GCN", "GraphSAGE", "GIN", "EdgeCNN"):
    _graph(_name)
_graph("GAT", heads=8)
_graph(
    "PNA",
    aggregators=["mean", "max", "std"],
    scalers=["identity", "amplification"],
    deg=torch.arange(8),
)


def _sound(name: str, library: str, samples: int, make: Callable[[], nn.Module], channels: int = 1) -> None:  # fmt: skip
    _add(name, library, lambda batch: (make(), torch.randn(batch, channels, samples)))


def _audio(name: str) -> Any:
    return getattr(importlib.import_module("torchaudio.models"), name)


def _encodec() -> nn.Module:
    model = importlib.import_module("encodec").EncodecModel.encodec_model_24khz(pretrained=False)
    return Called(nn.ModuleList([model.encoder, model.decoder]), lambda m, x: m[1](m[0](x)))


_sound("audio_conv_tasnet", "torchaudio", 16_000, lambda: _audio("conv_tasnet_base")(2))
_sound("audio_hdemucs", "torchaudio", 44_100, lambda: _audio("hdemucs_high")(["a", "b"]), 2)
_sound("audio_wav2letter", "torchaudio", 16_000, lambda: _audio("Wav2Letter")(input_type="waveform"))  # fmt: skip
_sound("audio_encodec", "encodec", 24_000, _encodec)


def _diffuser(name: str, kind: str, config: dict[str, Any], call: Callable[..., Any], *shapes: tuple[int, ...]) -> None:  # fmt: skip
    """A transformer or U-Net, of fewer layers where a whole one is a matter of gigabytes: as many arguments as shapes."""

    def make(batch: int) -> Parts:
        model = getattr(importlib.import_module("diffusers"), kind)(**config)
        return Called(model, call), *(torch.randn(batch, *s) for s in shapes)

    _add(f"diffusers_{name}", "diffusers", make, dtypes=("float16",))


def _at(x: Tensor) -> Tensor:
    """A moment for each element."""
    return torch.full((x.shape[0],), 500, device=x.device)


_diffuser(
    "sd15_unet", "UNet2DConditionModel", {"cross_attention_dim": 768},
    lambda m, x, text: m(x, _at(x), text, return_dict=False), (4, 64, 64), (77, 768),
)  # fmt: skip
_diffuser(
    "pixart", "PixArtTransformer2DModel", {"num_layers": 8, "caption_channels": 4096, "sample_size": 64, "norm_type": "ada_norm_single"},
    lambda m, x, text: m(x, text, _at(x), added_cond_kwargs={"resolution": None, "aspect_ratio": None}, return_dict=False),
    (4, 64, 64), (120, 4096),
)  # fmt: skip
_diffuser(
    "sd3", "SD3Transformer2DModel", {"num_layers": 4, "sample_size": 64, "pos_embed_max_size": 96},
    lambda m, x, text, pooled: m(x, text, pooled, _at(x), return_dict=False), (16, 64, 64), (154, 4096), (2048,),
)  # fmt: skip


def _flux(model: nn.Module, x: Tensor, text: Tensor, pooled: Tensor) -> Any:
    side = int(x.shape[1] ** 0.5)
    places = torch.stack([torch.arange(side * side, device=x.device) // side, torch.arange(side * side, device=x.device) % side], -1)  # fmt: skip
    images = torch.cat([torch.zeros_like(places[:, :1]), places], -1).to(x.dtype)
    words = torch.zeros(text.shape[1], 3, device=x.device, dtype=x.dtype)
    return model(x, text, pooled, _at(x).to(x.dtype) / 1000, images, words, return_dict=False)


_diffuser(
    "flux", "FluxTransformer2DModel", {"num_layers": 1, "num_single_layers": 2}, _flux, (1024, 64), (512, 4096), (768,),
)  # fmt: skip
_diffuser(
    "wan", "WanTransformer3DModel", {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 3},
    lambda m, x, text: m(x, _at(x), text, return_dict=False), (16, 3, 60, 104), (512, 4096),
)  # fmt: skip
_diffuser(
    "vae", "AutoencoderKL",
    {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 4, "down_block_types": ["DownEncoderBlock2D"] * 4,
     "up_block_types": ["UpDecoderBlock2D"] * 4},
    lambda m, x: m.encode(x, return_dict=False)[0].mean, (3, 256, 256),
)  # fmt: skip
