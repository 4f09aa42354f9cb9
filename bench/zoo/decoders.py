"""Causal language models over a whole prompt: GPT-2 (Radford et al., 2019), OPT (Zhang et al., 2022), Llama
(Touvron et al., 2023). With `use_cache`, the library's default, every layer's keys and values are results too."""

from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from bench.zoo.weights import build, tokens_of

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...], dict[str, Any]]


def gpt2(
    dtype: torch.dtype = torch.float32, *, tokens: int = 128, layers: int = 12, use_cache: bool = True, batch: int = 1, **config: Any
) -> Made:  # fmt: skip
    c = GPT2Config(n_layer=layers, **config)
    model = build(lambda: GPT2LMHeadModel(c), dtype)
    return model, (tokens_of(c.vocab_size, tokens, batch=batch),), {"use_cache": use_cache}


def opt_125m(
    dtype: torch.dtype = torch.float32, *, tokens: int = 128, layers: int = 12, use_cache: bool = True, **config: Any
) -> Made:  # fmt: skip
    c = OPTConfig(num_hidden_layers=layers, **config)
    model = build(lambda: OPTForCausalLM(c), dtype)
    return model, (tokens_of(c.vocab_size, tokens),), {"use_cache": use_cache}


def llama_1b(
    dtype: torch.dtype = torch.float32, *, tokens: int = 128, layers: int = 16, use_cache: bool = True, **config: Any
) -> Made:  # fmt: skip
    """The shape of Llama 3.2 1B: four queries a key, rotary positions, gated feed-forward, a tied head."""
    sizes = {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "tie_word_embeddings": True,
    } | config  # fmt: skip
    c = LlamaConfig(num_hidden_layers=layers, rms_norm_eps=1e-5, **sizes)
    model = build(lambda: LlamaForCausalLM(c), dtype)
    return model, (tokens_of(c.vocab_size, tokens),), {"use_cache": use_cache}
