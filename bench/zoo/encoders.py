"""Text encoders: BERT (Devlin et al., 2018), RoBERTa (Liu et al., 2019), CLIP's text tower (Radford et al., 2021)."""

from typing import Any

import torch
from transformers import (
    BertConfig,
    BertModel,
    CLIPTextConfig,
    CLIPTextModel,
    RobertaConfig,
    RobertaModel,
)

from bench.zoo.weights import build, tokens_of

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def bert_large(
    dtype: torch.dtype = torch.float32, *, tokens: int = 128, layers: int = 24, **config: Any
) -> Made:
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096} | config
    c = BertConfig(num_hidden_layers=layers, **sizes)
    return build(lambda: BertModel(c), dtype), (tokens_of(c.vocab_size, tokens),)


def roberta_base(
    dtype: torch.dtype = torch.float32, *, tokens: int = 128, layers: int = 12, **config: Any
) -> Made:
    sizes = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1} | config
    c = RobertaConfig(num_hidden_layers=layers, layer_norm_eps=1e-5, **sizes)
    return build(lambda: RobertaModel(c), dtype), (tokens_of(c.vocab_size, tokens),)


def clip_text(
    dtype: torch.dtype = torch.float32, *, tokens: int = 77, layers: int = 12, **config: Any
) -> Made:
    """Of ViT-B/32: width 512. It pools at the end-of-text token, which has the largest id."""
    c = CLIPTextConfig(num_hidden_layers=layers, **config)
    return build(lambda: CLIPTextModel(c), dtype), (tokens_of(c.vocab_size, tokens),)
