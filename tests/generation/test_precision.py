"""Steps in bfloat16, and very many steps."""

import copy

import pytest
import torch

import monotile
from monotile.generation.decoder import Decoder
from monotile.generation.generator import generator
from tests.conftest import wide
from tests.generation.test_generator import (  # fmt: skip
    OPTIONS,
    SIZES,
    WORDS,
    model_of,
    prompt,
    random_model,
)

transformers = pytest.importorskip("transformers")
STEPS, SEQUENCES = 20, 16


@pytest.mark.parametrize("name", ["llama", "mixtral", wide("qwen3"), wide("gemma2"), wide("gpt2")])
def test_bfloat16(name: str) -> None:
    """At each step, of as many sequences: the error against float32 is at most half as large again as that of PyTorch in bfloat16.

    The sequence in the middle counts: where two experts are as good as equal, either side may take the other one.
    """
    half = model_of(name).to(torch.bfloat16)
    ids = torch.randint(0, WORDS, (SEQUENCES, STEPS), generator=torch.Generator().manual_seed(1))
    right = copy.deepcopy(half).float()(ids, attention_mask=torch.ones_like(ids)).logits
    plain, ours = (Decoder(half, SEQUENCES, STEPS + 4) for _ in range(2))
    fast = monotile.compile(ours, (ids[:, :1], torch.tensor([0])), target="cpu", options=OPTIONS)
    for k in range(STEPS):
        step = ids[:, k : k + 1], torch.tensor([k])
        found, theirs = (
            (m(*step)[:, 0].float() - right[:, k]).norm(dim=1).median() for m in (fast, plain)
        )
        assert 0 < found <= 1.5 * theirs


@pytest.mark.wide
def test_ten_thousand_tokens() -> None:
    """It neither hangs nor goes astray: each token is the likeliest behind those before it."""
    sizes = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 10_016}  # fmt: skip
    model = random_model(transformers.LlamaConfig(**{**SIZES, **sizes}))
    lm = generator(model, 10_016, chunk=1, target="cpu", options=OPTIONS)
    assert lm.reader is None
    written = lm.generate(prompt(8) % 64, 10_000)
    assert written.shape == (1, 10_008)
    likeliest = model(written, attention_mask=torch.ones_like(written)).logits[0, 7:-1].argmax(-1)
    assert torch.equal(written[0, 8:], likeliest)
