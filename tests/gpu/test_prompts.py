"""Prompts of any length, read by one kernel: their keys and values beside PyTorch's in float32, and the model's own in bfloat16."""

import copy
from typing import Any

import pytest
import torch

from monotile.generation.decoder import Decoder
from monotile.generation.prompt import Reader
from tests.generation.test_generator import OPTIONS, SIZES, WORDS, transformers

pytestmark = pytest.mark.gpu
CAPACITY = 256
WIDE: dict[str, Any] = SIZES | {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "max_position_embeddings": CAPACITY}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "head_dim": 16}
CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**WIDE),
    "olmoe": lambda: transformers.OlmoeConfig(**WIDE, num_experts=8, num_experts_per_tok=2),
    "gpt_oss": lambda: transformers.GptOssConfig(**WIDE | EXPERTS, num_local_experts=8, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_small_prompts(name: str) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    for p in model.requires_grad_(False).parameters():
        if p.dim() > 1:
            p.data = torch.randn_like(p) * 1.5 * p.shape[-1] ** -0.5
    model = model.bfloat16().cuda()
    wide: Any = copy.deepcopy(model).float()
    narrow: Any = copy.deepcopy(model)
    for beside in (wide, narrow):
        beside.config._experts_implementation = "eager"
    decoder = Decoder(model, 1, CAPACITY)
    ids = torch.randint(1, WORDS, (CAPACITY,), device="cuda")
    reader = Reader(decoder, CAPACITY, (ids,), "cuda", OPTIONS)
    assert reader.sized
    for count in (8, 61, 128, 250):
        reader.read(ids, 0, count)
        right, theirs = (
            m(input_ids=ids[None, :count], use_cache=True).past_key_values.layers
            for m in (wide, narrow)
        )
        for k, layer in enumerate(right):
            for kind in ("keys", "values"):
                x, eager = getattr(layer, kind), getattr(theirs[k], kind)
                n = x.shape[2]  # a window keeps the last ones alone
                cache = decoder.get_buffer(f"{kind.removesuffix('s')}_cache_{k}")
                found = cache[:, :, count - n : count]
                # a row whose experts are nearly alike may choose another
                assert _near(found, x) > _near(eager, x) - 0.05, (count, k, kind)


def _near(found: torch.Tensor, right: torch.Tensor) -> float:
    """The part of the rows that differ by less than 5 %."""
    off = (found.float() - right).norm(dim=(1, 3)) / right.norm(dim=(1, 3))
    return (off < 0.05).float().mean().item()
