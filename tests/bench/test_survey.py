"""The survey of small models: what it makes of one, and of one that PyTorch itself does not run."""

import pytest
import torch

pytest.importorskip("transformers")

from bench.survey import small
from bench.survey.answers import answered
from bench.survey.ranged import ranged
from bench.survey.traced import traced
from bench.survey.written import written


def test_a_model_that_is_right() -> None:
    row = answered("bert", "AutoModel", "cpu", torch.float32)
    assert row.outcome == "right", row.said
    assert row.error is not None
    assert row.error < 1e-5


def test_a_model_of_all_sizes() -> None:
    row = ranged("mobilebert", "AutoModel", "cpu", torch.float32)
    assert row.outcome == "right", row.said
    assert row.said == ""


@pytest.mark.wide
def test_a_model_that_writes() -> None:
    row = written("llama", "AutoModelForCausalLM", "cpu", torch.float32)
    assert row.outcome == "right", row.said


def test_the_rule() -> None:
    config = small.config("llama", small.settings("llama")[0])
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 2, 4)
    assert config.vocab_size == small.WORDS


@pytest.mark.wide
def test_a_model_through_torch_compile() -> None:
    """CLIP's second result is its first one transposed: a view, at any sizes."""
    row = traced("clip", "AutoModel", "cpu", torch.float32)
    assert row.outcome == "right", row.said
    assert row.said == ""
