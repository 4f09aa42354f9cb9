"""A tiny Whisper's token, with its caches, on the CPU."""

import copy
from typing import Any

import torch

import monotile
from bench.decoding import CASES, floor, rebound
from bench.zoo.audio import whisper_token
from monotile.runtime.accuracy import error

TINY: dict[str, Any] = {
    "layers": 2, "vocab_size": 100, "d_model": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_source_positions": 50, "max_target_positions": 48, "pad_token_id": 1, "bos_token_id": 2,
    "eos_token_id": 3, "decoder_start_token_id": 4,
}  # fmt: skip


def test_whisper() -> None:
    decoder, args = whisper_token(torch.float32, position=20, **TINY)
    decoder.requires_grad_(False)
    fast = monotile.compile(decoder, args, target="cpu", options=monotile.Options(cache=False))
    assert fast.kernels == 1
    for position in (20, 21, 3):
        call = (torch.tensor([[position]]), torch.tensor([position]))
        right = rebound(copy.deepcopy(decoder).double())(*call)
        assert error(fast(*call), right) < 1e-5


def test_floor() -> None:
    """Weights without positions, a part of the decoder's own cache, all of what it crosses."""
    decoder, _ = whisper_token(torch.float32, **TINY)
    case = CASES["whisper_base"]._replace(dtype=torch.float32, capacity=48, position=24)
    weights = sum(p.numel() for p in decoder.parameters()) - 48 * 32
    own, cross = 2 * 2 * 24 * 32, 2 * 2 * 50 * 32
    assert floor(decoder, case, 1e6).bytes == 4 * (weights + own + cross)
