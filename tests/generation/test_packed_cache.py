"""Keys and values in 8 bits: what eager PyTorch gives with the same cache, from the same model."""

import pytest
import torch
from torch import nn

from monotile.errors import InputError
from monotile.generation.decoder import Decoder
from monotile.generation.generator import generator
from tests.conftest import wide
from tests.generation.test_generator import CAPACITY, CHUNK, OPTIONS, model_of, prompt

pytest.importorskip("transformers")


def written(model: nn.Module, ids: torch.Tensor, more: int, cache: str) -> torch.Tensor:
    """Token by token."""
    decoder = Decoder(model, 1, CAPACITY, cache)
    for at in range(ids.shape[1] + more - 1):
        logits = decoder(ids[:, at : at + 1], torch.tensor([at]))
        if at + 1 >= ids.shape[1]:
            ids = torch.cat((ids, logits[:, -1].argmax(-1, keepdim=True)), 1)
    return ids


@pytest.mark.parametrize("cache", ["int8", wide("fp8")])
@pytest.mark.parametrize("name", ["llama", wide("gpt2"), wide("qwen3"), wide("gemma2")])
@torch.no_grad()
def test_ids(name: str, cache: str) -> None:
    """Prompts of a few tokens and of chunks; the cache goes on."""
    model = model_of(name)
    lm = generator(model, CAPACITY, chunk=CHUNK, cache=cache, target="cpu", options=OPTIONS)
    for count in (3, 20):
        ids = prompt(count)
        assert torch.equal(lm.generate(ids, 12), written(model, ids, 12, cache))
    kinds = {b.dtype for n, b in lm.decoder.named_buffers() if n.startswith(("key_cache", "value_cache"))}  # fmt: skip
    assert kinds == {torch.int8 if cache == "int8" else torch.float8_e4m3fn}


@pytest.mark.wide
@torch.no_grad()
def test_batch() -> None:
    model = model_of("llama")
    lm = generator(model, CAPACITY, batch=2, cache="int8", target="cpu", options=OPTIONS)
    prompts = [prompt(4)[0], prompt(9, seed=1)[0]]
    found = lm.generate(prompts, 6)
    for ids, row in zip(prompts, found, strict=True):
        wanted = written(model, ids[None], 6, "int8")[0]
        assert torch.equal(row[-6:], wanted[-6:])


def test_no_such_format() -> None:
    with pytest.raises(InputError, match="cache='int4': there are int8, fp8"):
        generator(model_of("llama"), CAPACITY, cache="int4", target="cpu", options=OPTIONS)
