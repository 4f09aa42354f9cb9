"""Models of transformers with the configuration that each type has by default (`AutoModel`, mostly its base checkpoint's), which nothing here
was written for. They are timed only where the domain or a network of it is asked for."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.wide.registry import NETWORKS, Network, Parts

DOMAIN = "transformers"
TOKENS, SAMPLES, FRAMES = (
    128,
    16_000,
    400,
)  # of words; of sound, a second at 16 kHz; of its features, ten milliseconds each
Inputs = Callable[[Any, int], dict[str, Tensor]]  # of a configuration and a batch


class Named(nn.Module):
    """`model` with its arguments by name, and the first tensor of its results."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args: Tensor) -> Tensor:
        found = self.model(**dict(zip(self.names, args, strict=True)), return_dict=False)
        while isinstance(found, tuple | list):
            found = found[0]
        return found


def words(config: Any, batch: int, name: str = "input_ids") -> dict[str, Tensor]:
    of = getattr(config, "text_config", config)
    tokens = min(TOKENS, getattr(of, "max_position_embeddings", TOKENS))
    return {name: torch.randint(3, of.vocab_size - 3, (batch, tokens))}


def both(config: Any, batch: int) -> dict[str, Tensor]:
    return words(config, batch) | words(config, batch, "decoder_input_ids")


def image(config: Any, batch: int) -> dict[str, Tensor]:
    of = getattr(config, "vision_config", config)
    side = getattr(of, "image_size", None) or 224
    height, width = (side, side) if isinstance(side, int) else side
    return {"pixel_values": torch.randn(batch, getattr(of, "num_channels", 3), height, width)}


def sight(config: Any, batch: int) -> dict[str, Tensor]:
    """An image of the side at which detectors run."""
    del config
    return {"pixel_values": torch.randn(batch, 3, 640, 640)}


def film(config: Any, batch: int) -> dict[str, Tensor]:
    side, frames = config.image_size, getattr(config, "num_frames", 16)
    return {"pixel_values": torch.randn(batch, frames, 3, side, side)}


def captioned(config: Any, batch: int) -> dict[str, Tensor]:
    """Words of a caption, and an image."""
    return {"input_ids": words(config, batch)["input_ids"][:, :16]} | image(config, batch)


def sound(config: Any, batch: int) -> dict[str, Tensor]:
    del config
    return {"input_values": torch.randn(batch, SAMPLES)}


def track(config: Any, batch: int) -> dict[str, Tensor]:
    del config
    return {"input_values": torch.randn(batch, 1, SAMPLES)}


def spectrum(config: Any, batch: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch, config.max_length, config.num_mel_bins)}


def features(config: Any, batch: int) -> dict[str, Tensor]:
    bins = getattr(config, "input_feat_per_channel", None) or config.num_mel_bins
    return {"input_features": torch.randn(batch, FRAMES, bins)}


def heard(config: Any, batch: int) -> dict[str, Tensor]:
    return features(config, batch) | words(config, batch, "decoder_input_ids")


MODELS: dict[Inputs, str] = {
    words: """bloom clip_text_model convbert deberta doge electra ernie4_5 gpt_bigcode ibert imagegpt layoutlm lilt luke mamba megatron-bert
        nomic_bert nystromformer openai-gpt roberta-prelayernorm roformer squeezebert tapas yoso""",
    both: "blenderbot-small longt5 marian mt5 plbart switch_transformers",
    image: """beit bit convnextv2 cvt data2vec-vision dinov2_with_registers dinov3_convnext dinov3_vit dpt focalnet glpn hiera mgp-str mobilevit
        mobilevitv2 poolformer pvt pvt_v2 regnet sam_vision_model sam2_vision_model siglip_vision_model swin2sr swiftformer textnet vitdet vit_msn""",
    sight: "d_fine deimv2 mask2former maskformer rt_detr",
    film: "timesformer videomae vivit",
    captioned: "align blip bridgetower clip clipseg flava git owlvit siglip vilt",
    sound: "data2vec-audio hubert sew sew-d unispeech-sat wav2vec2-conformer",
    track: "dac",
    spectrum: "audio-spectrogram-transformer",
    features: "lasr_encoder",
    heard: "speech_to_text",
}  # fmt: skip


def make(kind: str, inputs: Inputs, batch: int) -> Parts:
    hub: Any = importlib.import_module("transformers")
    config = hub.CONFIG_MAPPING[kind]()
    config.use_cache = False  # with one, no rival of a decoder is captured in a graph
    given = inputs(config, batch)
    return Named(hub.AutoModel.from_config(config), list(given)), *given.values()


NETWORKS.update(
    (f"transformers_{kind}", Network(kind, DOMAIN, partial(make, kind, inputs), inputs is image, "transformers"))
    for inputs, kinds in MODELS.items()
    for kind in kinds.split()
)  # fmt: skip
