"""Several sequences at a time: each is what transformers' generate gives for it alone."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from monotile.errors import CaptureError, InputError
from monotile.generation.batch import BatchGenerator, BatchStep
from monotile.generation.decoder import Decoder
from monotile.generation.generator import Generator, generator
from monotile.generation.sampling import bits
from monotile.transform.iterate import Iterate
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide
from tests.generation.test_generator import (  # fmt: skip
    CHUNK,
    CONFIGS,
    OPTIONS,
    WORDS,
    expected,
    model_of,
    prompt,
    random_model,
)
from tests.generation.test_prompt import WINDOWED

transformers = pytest.importorskip("transformers")
CAPACITY = 64


def prompts(*lengths: int) -> list[Tensor]:
    return [prompt(n, n + k)[0] for k, n in enumerate(lengths)]


def filled(sequences: Sequence[Tensor], pad: int = 0) -> tuple[Tensor, Tensor]:
    """As a tokenizer that pads on the left gives them: ids and mask."""
    longest = max(map(len, sequences))
    ids = torch.stack([torch.nn.functional.pad(x, (longest - len(x), 0), value=pad) for x in sequences])  # fmt: skip
    mask = torch.stack([torch.nn.functional.pad(torch.ones_like(x), (longest - len(x), 0)) for x in sequences])  # fmt: skip
    return ids, mask


def made(model: torch.nn.Module, batch: int = 3) -> BatchGenerator:
    lm = generator(model, CAPACITY, batch=batch, chunk=CHUNK, target="cpu", options=OPTIONS)
    assert isinstance(lm, BatchGenerator)
    return lm


@pytest.fixture(scope="module")
def three(llama: tuple[torch.nn.Module, Generator]) -> tuple[torch.nn.Module, BatchGenerator]:
    return llama[0], made(llama[0])


@pytest.mark.parametrize(
    "name", ["llama", wide("gemma2, window"), wide("gpt2"), wide("mixtral"), wide("qwen3")]
)
def test_greedy(name: str, request: pytest.FixtureRequest) -> None:
    """A few tokens behind short prompts, fifty behind longer ones that are read in chunks, until the cache is full, and few behind long ones, of
    which a chunk is shifted back."""
    if name == "llama":
        model, lm = request.getfixturevalue("three")
    else:
        model = random_model((CONFIGS | WINDOWED)[name]())
        lm = made(model)
    for lengths, more in (((1, 4, 2), 10), ((14, 3, 9), 50), ((62, 20, 41), 2)):
        given = prompts(*lengths)
        for x, row in zip(given, lm.generate(given, more), strict=True):
            assert torch.equal(row[max(lengths) - len(x) :], expected(model, x[None], more)[0])


@pytest.mark.wide
def test_eight() -> None:
    model = model_of("llama")
    lm, given = made(model, 8), prompts(*range(3, 11))
    for x, row in zip(given, lm.generate(given, 12), strict=True):
        assert torch.equal(row[10 - len(x) :], expected(model, x[None], 12)[0])


def test_each_ends_at_its_own_stop(three: tuple[torch.nn.Module, BatchGenerator]) -> None:
    model, lm = three
    ids, mask = filled(prompts(5, 12, 9))
    whole = lm.generate(ids, 40, attention_mask=mask)
    for stops in ([int(whole[0, 15]), int(whole[1, 30])], [int(whole[2, 20])], [int(whole[k, 12 + k]) for k in range(3)]):  # fmt: skip
        found = lm.generate(ids, 40, attention_mask=mask, eos_token_id=stops)
        right = model.generate(ids, attention_mask=mask, max_new_tokens=40, do_sample=False, eos_token_id=stops)  # fmt: skip
        assert torch.equal(found, right)
    assert found.shape[1] < whole.shape[1]


def test_a_list_is_as_good_as_a_mask(three: tuple[torch.nn.Module, BatchGenerator]) -> None:
    _, lm = three
    given = prompts(7, 3, 10)
    ids, mask = filled(given, pad=5)
    assert torch.equal(lm.generate(given, 9)[:, 10:], lm.generate(ids, 9, attention_mask=mask.bool())[:, 10:])  # fmt: skip


def test_fewer_sequences_than_there_is_room_for(three: tuple[torch.nn.Module, BatchGenerator]) -> None:  # fmt: skip
    model, lm = three
    for given in (prompts(15, 4), prompts(6)):
        found = lm.generate(given, 20)
        assert len(found) == len(given)
        for x, row in zip(given, found, strict=True):
            assert torch.equal(row[len(given[0]) - len(x) :], expected(model, x[None], 20)[0])


def test_each_draws_its_own_numbers(
    llama: tuple[torch.nn.Module, Generator], three: tuple[torch.nn.Module, BatchGenerator]
) -> None:
    (_, alone), (_, lm) = llama, three
    how = {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}
    same = prompt(4).expand(3, 4)
    found = lm.generate(same, 20, seed=3, **how)
    assert len({tuple(row.tolist()) for row in found}) == 3
    assert torch.equal(found, lm.generate(same, 20, seed=3, **how))
    assert torch.equal(found[:1], alone.generate(same[:1], 20, seed=3, **how))


def test_the_counter_has_the_sequence() -> None:
    one, many = (bits(torch.tensor(7), torch.tensor(9), *shape) for shape in ((50,), (4, 50)))
    assert torch.equal(one, many[0])
    assert many.unique().numel() == 200


def test_the_penalty_is_each_one_s_own(three: tuple[torch.nn.Module, BatchGenerator]) -> None:
    model, lm = three
    given = prompts(6, 2, 13)
    for x, row in zip(given, lm.generate(given, 25, repetition_penalty=1.3), strict=True):
        assert torch.equal(row[13 - len(x) :], expected(model, x[None], 25, repetition_penalty=1.3)[0])  # fmt: skip


def test_sequences_that_go_on(three: tuple[torch.nn.Module, BatchGenerator]) -> None:
    """One of them has ended early."""
    model, lm = three
    first, second = prompts(5, 12, 9), prompts(2, 1, 4)
    stop = int(lm.generate(first, 9)[0, 14])
    begun = [expected(model, x[None], 9, eos_token_id=stop)[0] for x in first]
    lm.generate(first, 9, eos_token_id=stop)
    found = lm.generate(second, 8, follow=True)
    for x, more, row in zip(begun, second, found, strict=True):
        both = torch.cat((x, more))[None]
        assert torch.equal(row[-both.shape[1] - 8 :], expected(model, both, 8)[0])
    with pytest.raises(InputError, match="sequences that go on"):
        lm.generate(second[:2], 8, follow=True)


IDS = torch.ones(3, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("ids", "how", "words"),
    [
        (torch.ones(4, 4, dtype=torch.int64), {}, "give 1 to 3 sequences"),
        (prompts(1, 2, 3, 4), {}, "give 1 to 3 sequences"),
        (IDS[0], {}, "give 1 to 3 sequences"),
        ([], {}, "give 1 to 3 sequences"),
        (IDS.float(), {}, "give 1 to 3 sequences"),
        ([IDS], {}, "give a tensor, int64 of shape"),
        (IDS[:, :0], {}, "a token at least"),
        ([IDS[0], IDS[0, :0]], {}, "a token at least"),
        (IDS, {"attention_mask": torch.tensor([[0, 0, 0, 0]] * 3)}, "a token at least"),
        (IDS, {"attention_mask": torch.tensor([[1, 1, 1, 0]] * 3)}, "no left padding"),
        (IDS, {"attention_mask": torch.tensor([[0, 1, 0, 1]] * 3)}, "no left padding"),
        (IDS, {"attention_mask": torch.tensor([[0, 2, 2, 2]] * 3)}, "no left padding"),
        (IDS, {"attention_mask": torch.ones(3, 5)}, "have to be equal"),
        (prompts(2, 3), {"attention_mask": IDS}, "a list needs none"),
        (prompts(3, 60), {"max_new_tokens": 5}, "over the capacity of 64"),
        (IDS + WORDS, {}, "the vocabulary has 96"),
        (IDS, {"max_new_tokens": 0}, "an answer"),
        (IDS, {"temperature": -1.0}, "temperature"),
        (IDS, {"eos_token_id": list(range(9))}, "at most 8"),
    ],
)
def test_bad_input(three: tuple[torch.nn.Module, BatchGenerator], ids: Tensor, how: dict[str, int], words: str) -> None:  # fmt: skip
    with pytest.raises(InputError, match=words):
        three[1].generate(ids, **how)


def test_batches_that_are_none() -> None:
    with pytest.raises(InputError, match="a batch of 0"):
        generator(model_of("llama"), 12, batch=0)
    with pytest.raises(InputError, match="capacity of 100"):
        generator(model_of("llama"), 100, batch=2)
    config = transformers.BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=1, n_head=2)
    with pytest.raises(CaptureError, match="takes no position_ids"):
        generator(transformers.BloomForCausalLM(config).eval(), 12, batch=2)


def test_one_sequence_with_padding(llama: tuple[torch.nn.Module, Generator]) -> None:
    model, lm = llama
    ids, mask = torch.tensor([[0, 0, 7, 8, 9]]), torch.tensor([[0, 0, 1, 1, 1]])
    right = expected(model, ids[:, 2:], 6)
    assert torch.equal(lm.generate(ids, 6, attention_mask=mask), right)
    assert torch.equal(lm.generate([ids[0, 2:]], 6), right)


@pytest.mark.wide
@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    model = model_of("llama")
    lm = generator(model, 12, batch=2, chunk=1, target="cpu", options=OPTIONS)
    assert isinstance(lm, BatchGenerator)
    rows, more = lm._rows(prompts(2, 4), None, 5, follow=False), 5
    right = lm.generate(prompts(2, 4), more)
    call = lm.call(rows, more)
    step = BatchStep(Decoder(model, 2, 12)).eval()
    fast = Emulated(step, call, iterate=Iterate((0, 1, 2, 3), 2, 12, unread=False))
    written, last, goes_on, ended = fast(*call)
    assert torch.equal(written[:, : int(last) + 1], right)
    assert not goes_on
    assert not ended.any()
