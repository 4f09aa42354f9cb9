"""Answers whose attention is in parts of the keys, each one streamed step: on the emulator, the tokens of the model in float64."""

import copy

import pytest
import torch

from monotile.choice.chooser import Prefer
from monotile.generation.decoder import Decoder
from monotile.generation.generator import generator
from monotile.generation.step import Step, iterated
from monotile.kernels.attention.method import Attend
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide
from tests.generation.test_generator import OPTIONS, SIZES, expected, prompt, random_model

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
HEADS = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
}
STREAMED = Prefer("split keys", lambda way: way == {"parts": 2, "streamed": True})


def decoder_of(dtype: torch.dtype) -> torch.nn.Module:
    return random_model(transformers.LlamaConfig(**{**SIZES, **HEADS})).to(dtype)


def parts(fast: Emulated) -> list[Attend]:
    every = (s.method for stage in stages_in(fast.plan.body) for s in stage.steps)
    return [m for m in every if isinstance(m, Attend) and m.part and m.direct]


@pytest.mark.wide
def test_an_answer() -> None:
    model = decoder_of(torch.float16)
    lm = generator(model, 64, chunk=1, target="cpu", options=OPTIONS)
    ids = prompt(3)
    right = expected(copy.deepcopy(model).double(), ids, 6)
    call = lm.call(ids[0], 6)
    fast = Emulated(Step(lm.decoder, 64).eval(), call, 4, iterate=iterated(64), chooser=STREAMED)
    (_,) = parts(fast)  # the layers are a loop
    (own,) = (s for s in stages_in(fast.plan.body) if isinstance(s.steps[0].method, Attend))
    assert own.late  # each worker counts the live keys for itself
    assert all(b.known for b in own.steps[0].bounds)
    written, last, _ = fast(*call)
    assert written[: int(last) + 1].tolist() == right[0].tolist()


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [torch.float16, wide(torch.bfloat16)], ids=str)
def test_several_tokens_at_once(dtype: torch.dtype) -> None:
    """Of each token it is known from where on it sees nothing."""
    model = decoder_of(dtype)
    call = (prompt(4), torch.arange(4))
    fast = Emulated(Decoder(model, 1, 64), call, chooser=STREAMED)
    (_,) = parts(fast)
    (found,) = fast(*call)
    right = copy.deepcopy(model).double()(call[0]).logits
    off = (found.double() - right[:, : found.shape[1]]).abs().max() / right.abs().max()
    assert off < (0.01 if dtype is torch.float16 else 0.06)
