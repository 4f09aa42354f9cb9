"""Whisper (Radford et al., 2022): its encoder over 30 seconds of log-mel spectrogram, and a token of its decoder; wav2vec 2.0 (Baevski et al.,
2020) over a second of samples."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    EncoderDecoderCache,
    StaticCache,
    Wav2Vec2Config,
    Wav2Vec2Model,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
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


class WhisperToken(nn.Module):
    """The decoder of `model` with static caches as its buffers, as transformers' generate has them: its own keys and values, and those of what
    `features` [1, bins, frames] were encoded to, which the first token has computed."""

    def __init__(self, model: WhisperForConditionalGeneration, features: Tensor) -> None:
        super().__init__()
        c = model.config
        self.decoder, self.head = model.model.decoder, model.proj_out
        own, cross = (
            StaticCache(config=c, max_cache_len=n)
            for n in (c.max_target_positions, c.max_source_positions)
        )
        self.cache = EncoderDecoderCache(own, cross)
        with torch.no_grad():
            encoded = model.model.encoder(features).last_hidden_state
            first = torch.full((1, 1), c.decoder_start_token_id, device=features.device)
            self.decoder(
                input_ids=first,
                encoder_hidden_states=encoded,
                past_key_values=self.cache,
                use_cache=True,
            )
        self.register_buffer("encoded", encoded, persistent=False)
        for i, (layer, other) in enumerate(zip(own.layers, cross.layers, strict=True)):
            self.register_buffer(f"key_cache_{i}", layer.keys, persistent=False)
            self.register_buffer(f"value_cache_{i}", layer.values, persistent=False)
            self.register_buffer(
                f"cumulative_length_{i}", layer.cumulative_length, persistent=False
            )
            self.register_buffer(f"cross_keys_{i}", other.keys, persistent=False)
            self.register_buffer(f"cross_values_{i}", other.values, persistent=False)

    def forward(self, input_ids: Tensor, cache_position: Tensor) -> Tensor:
        """Logits [1, 1, vocabulary] of the token [1, 1] at that place [1]."""
        own = self.cache.self_attention_cache
        for layer in own.layers:
            layer.cumulative_length.copy_(cache_position[0])
        found = self.decoder(
            input_ids=input_ids,
            encoder_hidden_states=self.encoded,
            past_key_values=self.cache,
            use_cache=True,
            position_ids=cache_position[None],
        )
        return self.head(found.last_hidden_state)


def whisper_token(
    dtype: torch.dtype = torch.float32, *, layers: int = 6, position: int = 200, **config: Any
) -> tuple[WhisperToken, tuple[Tensor, Tensor]]:
    """A token of Whisper base at `position`."""
    sizes = {
        "vocab_size": 51865,
        "d_model": 512,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048,
    } | config
    c = WhisperConfig(encoder_layers=layers, decoder_layers=layers, **sizes)
    model = build(lambda: WhisperForConditionalGeneration(c), dtype)
    features = torch.randn(1, c.num_mel_bins, 2 * c.max_source_positions, dtype=dtype)
    token = WhisperToken(model, features).eval()
    for name, b in token.named_buffers():
        if name.startswith(("key_cache", "value_cache")):
            b.normal_()
    return token, (torch.full((1, 1), 17), torch.tensor([position]))


def wav2vec2_base(
    dtype: torch.dtype = torch.float32, *, layers: int = 12, samples: int = 16000, **config: Any
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    c = Wav2Vec2Config(num_hidden_layers=layers, **config)
    return build(lambda: Wav2Vec2Model(c), dtype), (torch.randn(1, samples, dtype=dtype),)
