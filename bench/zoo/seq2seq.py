"""T5 (Raffel et al., 2019): encoder, decoder and head in one model, over a whole input and a whole answer."""

from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration

from bench.zoo.weights import build, tokens_of


def t5_base(
    dtype: torch.dtype = torch.float32, *, tokens: int = 128, layers: int = 12, use_cache: bool = True, **config: Any
) -> tuple[torch.nn.Module, tuple[()], dict[str, Any]]:  # fmt: skip
    sizes = {
        "vocab_size": 32128,
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 3072,
        "num_heads": 12,
    } | config
    c = T5Config(num_layers=layers, num_decoder_layers=layers, decoder_start_token_id=0, **sizes)
    model = build(lambda: T5ForConditionalGeneration(c), dtype)
    ids, answer = tokens_of(c.vocab_size, tokens), tokens_of(c.vocab_size, tokens)
    return model, (), {"input_ids": ids, "decoder_input_ids": answer, "use_cache": use_cache}
