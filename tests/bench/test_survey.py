"""The survey of small models: what it makes of one, and of one that PyTorch itself does not run."""

import pytest
import torch

pytest.importorskip("transformers")

from bench.survey import small
from bench.survey.__main__ import measured


def test_a_model_that_is_right() -> None:
    row = measured("bert", "cpu", torch.float32)
    assert row.outcome == "right", row.said
    assert row.error is not None
    assert row.error < 1e-5


def test_the_rule() -> None:
    config = small.config("llama")
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 2, 4)
    assert config.vocab_size == small.WORDS
