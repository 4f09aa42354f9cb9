"""Audio encoders: Whisper's (Radford et al., 2022), 30 seconds of log-mel spectrogram; wav2vec 2.0 (Baevski et al., 2020), a second of samples."""

from typing import Any

import torch
from transformers import Wav2Vec2Config, Wav2Vec2Model, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from bench.zoo.weights import build


def whisper_base(
    dtype: torch.dtype = torch.float32, *, layers: int = 6, **config: Any
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    sizes = {"d_model": 512, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048} | config
    c = WhisperConfig(encoder_layers=layers, **sizes)
    model = build(lambda: WhisperEncoder(c), dtype)
    frames = 2 * c.max_source_positions
    return model, (torch.randn(1, c.num_mel_bins, frames, dtype=dtype),)


def wav2vec2_base(
    dtype: torch.dtype = torch.float32, *, layers: int = 12, samples: int = 16000, **config: Any
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    c = Wav2Vec2Config(num_hidden_layers=layers, **config)
    return build(lambda: Wav2Vec2Model(c), dtype), (torch.randn(1, samples, dtype=dtype),)
