"""BERT-base (Devlin et al., 2018), the encoder of Hugging Face's library: 12 layers of width 768, 128 tokens."""

import torch
from transformers import BertConfig, BertModel


def make(
    dtype: torch.dtype = torch.float32, *, tokens: int = 128, layers: int = 12, batch: int = 1
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)
    model = torch.nn.Module.to(BertModel(config, add_pooling_layer=False).eval(), dtype)
    return model, (torch.randint(0, config.vocab_size, (batch, tokens)),)
