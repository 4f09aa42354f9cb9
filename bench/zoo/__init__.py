"""Well-known models at full size, from their published configurations, with random weights: nothing is downloaded.

One file a family. A model is a function `name(dtype, *, layers=..., **config)` that gives (model, args, kwargs);
`config` takes the place of entries of its configuration, which is how the tests make small ones. To add a model, write
such a function, its line in `ZOO` and its line in `TABLE`.
"""

import importlib
from typing import Any

import msgspec
import torch

from monotile.examples import EXAMPLES
from monotile.runtime.reference import Call, call_of

ZOO = {
    "bert_large": "bench.zoo.encoders:bert_large",
    "roberta_base": "bench.zoo.encoders:roberta_base",
    "clip_text": "bench.zoo.encoders:clip_text",
    "t5_base": "bench.zoo.seq2seq:t5_base",
    "gpt2": "bench.zoo.decoders:gpt2",
    "opt_125m": "bench.zoo.decoders:opt_125m",
    "llama_1b": "bench.zoo.decoders:llama_1b",
    "whisper_base": "bench.zoo.audio:whisper_base",
    "wav2vec2_base": "bench.zoo.audio:wav2vec2_base",
    "vit_base": "bench.zoo.vision:vit_base",
    "clip_vision": "bench.zoo.vision:clip_vision",
    "swin_base": "bench.zoo.vision:swin_base",
    "resnet18": "bench.zoo.vision:resnet18",
    "resnet50": "bench.zoo.vision:resnet50",
    "convnext_tiny": "bench.zoo.vision:convnext_tiny",
    "segformer_b0": "bench.zoo.vision:segformer_b0",
    "resnext101": "bench.zoo.vision:resnext101",
    "efficientnet_b0": "bench.zoo.vision:efficientnet_b0",
    "mobilenet_v2": "bench.zoo.vision:mobilenet_v2",
}
MODELS = EXAMPLES | ZOO

# What `python -m bench.model_table` compiles, in the order of its table.
TABLE = [
    "bert_large", "roberta_base", "clip_text", "t5_base", "t5_base::use_cache=False", "gpt2", "gpt2::use_cache=False",
    "opt_125m", "opt_125m::use_cache=False", "llama_1b", "llama_1b::use_cache=False", "whisper_base",
    "vit_base", "clip_vision", "swin_base", "resnext101", "efficientnet_b0", "mobilenet_v2",
]  # fmt: skip


class Spec(msgspec.Struct, frozen=True):
    """A model as the benchmarks' command lines name it: `name[:dtype[:key=value,...]]`."""

    name: str
    dtype: str = "float32"
    arguments: dict[str, Any] = {}

    @classmethod
    def parse(cls, text: str) -> "Spec":
        name, dtype, rest = (*text.split(":"), "", "")[:3]
        pairs = (item.split("=") for item in rest.split(",") if item)
        return cls(name, dtype or "float32", {k: _value(v) for k, v in pairs})

    def __str__(self) -> str:
        arguments = ",".join(f"{k}={v}" for k, v in self.arguments.items())
        return f"{self.name}:{self.dtype}" + (f":{arguments}" if arguments else "")

    def make(self) -> tuple[torch.nn.Module, Call]:
        """The model, in eval mode and without gradients, and its arguments."""
        module, _, function = MODELS[self.name].partition(":")
        maker = getattr(importlib.import_module(module), function)
        model, *call = maker(getattr(torch, self.dtype), **self.arguments)
        return model.requires_grad_(False), call_of(*call)


def _value(text: str) -> Any:
    return {"True": True, "False": False}.get(text) if text in ("True", "False") else int(text)
