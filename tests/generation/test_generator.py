"""Prompt and answer by one kernel: what transformers' generate gives, from the same model."""

from collections.abc import Callable

import pytest
import torch

import monotile
from monotile.errors import CaptureError, InputError
from monotile.generation.generator import Generator, generator
from monotile.generation.prompt import LEAST
from monotile.generation.step import Step, iterated
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide

transformers = pytest.importorskip("transformers")
WORDS, CAPACITY, CHUNK = 96, 48, 12
# Prompts: one token, few, some more, a chunk, a chunk and one more, chunks with a rest, one that is shifted back, all of the cache but one.
COUNTS = (1, 5, LEAST + 1, CHUNK + 1, CHUNK + 2, 3 * CHUNK - 4, CAPACITY - 6, CAPACITY - 1)
SIZES = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "num_hidden_layers": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, Callable[[], object]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(head_dim=16, **SIZES),
    "gemma2": lambda: transformers.Gemma2Config(head_dim=16, sliding_window=64, **SIZES),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None, pad_token_id=0
    ),
    "mixtral": lambda: transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, sliding_window=None, **SIZES),
}  # fmt: skip
OPTIONS = monotile.Options(cache=False)


def model_of(name: str) -> torch.nn.Module:
    return random_model(CONFIGS[name]())


def random_model(config: object) -> torch.nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for p in model.parameters():
        p.data = torch.randn_like(p) * (0.5 if p.dim() == 1 else 1.5 * p.shape[-1] ** -0.5)
    return model.requires_grad_(False)


def prompt(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, WORDS, (1, count), generator=torch.Generator().manual_seed(seed))


def expected(model: torch.nn.Module, ids: torch.Tensor, more: int, **how: object) -> torch.Tensor:
    return model.generate(ids, max_new_tokens=more, do_sample=False, attention_mask=torch.ones_like(ids), **how)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["llama", wide("gpt2"), wide("mixtral"), wide("qwen3"), wide("gemma2")]
)
def test_greedy(name: str, request: pytest.FixtureRequest) -> None:
    if name == "llama":
        model, lm = request.getfixturevalue("llama")
    else:
        model = model_of(name)
        lm = generator(model, CAPACITY, chunk=CHUNK, target="cpu", options=OPTIONS)
    assert lm.kernel.kernels == 1
    for count in COUNTS:
        ids, more = prompt(count, count), CAPACITY - count
        assert torch.equal(lm.generate(ids, more), expected(model, ids, more))


def test_it_ends_at_a_stop(llama: tuple[torch.nn.Module, Generator]) -> None:
    model, lm = llama
    ids = prompt(4)
    whole = lm.generate(ids, 30)
    stop = int(whole[0, 12])
    found = lm.generate(ids, 30, eos_token_id=[stop, 200])
    assert torch.equal(found, expected(model, ids, 30, eos_token_id=stop))
    assert found.shape[1] <= 13


def test_a_sequence_that_goes_on(llama: tuple[torch.nn.Module, Generator]) -> None:
    model, lm = llama
    first, second = prompt(4, 1), prompt(3, 2)
    begun = lm.generate(first, 6)
    both = lm.generate(second, 5, follow=True)
    assert torch.equal(both, expected(model, torch.cat((begun, second), 1), 5))
    assert lm.length == both.shape[1] - 1


def test_a_seed_gives_the_same_tokens(llama: tuple[torch.nn.Module, Generator]) -> None:
    _, lm = llama
    ids = prompt(4)
    how = {"temperature": 1.2, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}
    texts = [lm.generate(ids, 20, seed=s, **how) for s in (3, 3, 4)]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_the_penalty_is_that_of_transformers(llama: tuple[torch.nn.Module, Generator]) -> None:
    model, lm = llama
    ids = prompt(6, 3)
    found = lm.generate(ids, 25, repetition_penalty=1.3)
    assert torch.equal(found, expected(model, ids, 25, repetition_penalty=1.3))


def test_new_weights_are_seen(llama: tuple[torch.nn.Module, Generator]) -> None:
    model, lm = llama
    model.lm_head.weight.mul_(-1)
    ids = prompt(4)
    assert torch.equal(lm.generate(ids, 10), expected(model, ids, 10))
    model.lm_head.weight.mul_(-1)


@pytest.mark.parametrize(
    ("ids", "how", "words"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), {}, "a token at least"),
        (torch.zeros(2, 3, dtype=torch.int64), {}, "give one sequence"),
        (torch.zeros(1, 3), {}, "give one sequence"),
        ([[1, 2]], {}, "sequence 0 is a list: give a tensor"),
        ("a text", {}, "ids are a str: give tensors"),
        (prompt(40), {"max_new_tokens": 9}, "over the capacity of 48"),
        (prompt(3) + WORDS, {}, "the vocabulary has 96"),
        (prompt(3), {"temperature": -1.0}, "temperature"),
        (prompt(3), {"top_p": 0.0}, "top_p"),
        (prompt(3), {"min_p": 1.5}, "min_p"),
        (prompt(3), {"top_k": -1}, "top_k"),
        (prompt(3), {"repetition_penalty": 0.0}, "repetition_penalty"),
        (prompt(3), {"max_new_tokens": 0}, "an answer has a token"),
        (prompt(3), {"eos_token_id": list(range(9))}, "at most 8"),
    ],
)
def test_bad_input(llama: tuple[torch.nn.Module, Generator], ids: torch.Tensor, how: dict[str, float], words: str) -> None:  # fmt: skip
    with pytest.raises(InputError, match=words):
        llama[1].generate(ids, **how)


def test_models_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="capacity of 100"):
        generator(model_of("llama"), 100)
    with pytest.raises(InputError, match="chunks of 0"):
        generator(model_of("llama"), 40, chunk=0)
    with pytest.raises(CaptureError, match="static cache"):
        generator(torch.nn.Linear(3, 3), 8)


@pytest.mark.wide  # test_stream and test_batch have such a step there too
@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    model = model_of("llama")
    lm = generator(model, 12, chunk=1, target="cpu", options=OPTIONS)
    ids = prompt(3)
    right = lm.generate(ids, 5)
    step = Step(lm.decoder, 12).eval()
    call = lm.call(ids[0], 5)
    fast = Emulated(step, call, iterate=iterated(12))
    written, last, goes_on = fast(*call)
    assert written[: int(last) + 1].tolist() == right[0].tolist()
    assert not goes_on
