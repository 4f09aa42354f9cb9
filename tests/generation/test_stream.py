"""Tokens while the kernel writes them: as they are, how early they come, and who stops it."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch

from monotile.errors import IndexOutOfRangeError, InputError
from monotile.generation import stream as streaming
from monotile.generation.generator import Generator, generator
from monotile.generation.step import Step, iterated
from monotile.generation.stream import Writing
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.generation.test_generator import OPTIONS, SIZES, WORDS, prompt, transformers

CAPACITY = 6000
FEW = 3000  # steps: far fewer than there would be, far more than a slow machine does until it is told to stop


def small() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = SIZES | {"num_hidden_layers": 1, "max_position_embeddings": CAPACITY}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes))
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def lm() -> Generator:
    return generator(small(), CAPACITY, target="cpu", options=OPTIONS)


def calls() -> int:
    """How many calls go on in threads."""
    return sum(t.name == "monotile-call" for t in threading.enumerate())


def ends() -> None:
    end = time.monotonic() + 60
    while calls():
        assert time.monotonic() < end, "the kernel goes on"
        time.sleep(1e-3)


def test_the_tokens_are_those_of_generate(lm: Generator) -> None:
    ids = prompt(5)
    how = {"temperature": 1.0, "top_k": 50, "seed": 3}
    whole = lm.generate(ids, 40, **how)
    last = lm.length
    tokens = list(lm.stream(ids, 40, **how))
    assert tokens == whole[0, 5:].tolist()
    assert lm.length == last == 44
    assert not calls()
    stop = tokens[7]
    assert list(lm.stream(ids, 40, eos_token_id=stop, **how)) == tokens[: tokens.index(stop) + 1]


def test_tokens_come_while_the_kernel_writes(lm: Generator) -> None:
    ids, more = prompt(5), CAPACITY - 5
    tokens = lm.stream(ids, more)
    first = [next(tokens) for _ in range(3)]
    assert not tokens._writing.finished()
    tokens.close()
    assert 7 <= lm.length < FEW
    assert not calls()
    assert list(tokens) == []
    assert first == lm.generate(ids, 3)[0, 5:].tolist()


def test_what_was_closed_goes_on(lm: Generator) -> None:
    ids, second = prompt(5), prompt(3, 2)
    tokens = lm.stream(ids, CAPACITY - 5, temperature=1.0)
    next(tokens)
    tokens.close()
    begun = lm.length + 1
    assert begun < FEW
    both = lm.generate(second, 5, follow=True)
    first = lm.generate(ids, begun - 5, temperature=1.0)
    assert torch.equal(both[:, :begun], first)
    assert torch.equal(both, lm.generate(torch.cat((first, second), 1), 5))
    assert list(lm.stream(second, 4, follow=True)) == lm.generate(torch.cat((both, second), 1), 4)[0, -4:].tolist()  # fmt: skip


def test_who_leaves_stops_the_kernel(lm: Generator) -> None:
    """However they leave. On a busy machine the kernel may be done before its reader gets a processor: then once more."""
    ids, more = prompt(4), CAPACITY - 4

    def breaks() -> None:
        for _ in lm.stream(ids, more):
            break

    def failing() -> None:
        for _ in lm.stream(ids, more):
            raise KeyError

    def fails() -> None:
        with pytest.raises(KeyError):
            failing()

    def forgets() -> None:
        circle: list[object] = [lm.stream(ids, more)]
        circle.append(circle)
        del circle
        gc.collect()

    def stopped(leave: Callable[[], None]) -> bool:
        leave()
        ends()
        return lm.length < FEW

    for leave in (breaks, fails, forgets):
        assert any(stopped(leave) for _ in range(3))


def test_an_interrupt_stops_the_kernel(lm: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    tokens = lm.stream(prompt(2000), 3000)
    monkeypatch.setattr(streaming.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(tokens)  # sooner or later one is not there yet
    monkeypatch.undo()
    assert not calls()
    assert lm.length < 2000 + 3000


def test_another_call_ends_a_stream(lm: Generator) -> None:
    ids = prompt(4)
    tokens = lm.stream(ids, CAPACITY - 4)
    next(tokens)
    right = lm.generate(ids, 4)
    assert list(tokens) == []
    other = lm.stream(ids, CAPACITY - 4)
    assert list(lm.stream(ids, 4)) == right[0, 4:].tolist()
    assert list(other) == []


def test_what_goes_wrong_in_the_kernel_is_raised(lm: Generator) -> None:
    call = lm.call(prompt(3)[0] + WORDS, 4)
    tokens = streaming.Stream(Writing(lm.kernel, call[:-2], CAPACITY, lambda _: None), 7)
    with pytest.raises(IndexOutOfRangeError):
        next(tokens)
    assert list(tokens) == []
    assert lm.generate(prompt(3), 2).shape == (1, 5)


def test_bad_input_is_refused_before_the_first_token(lm: Generator) -> None:
    with pytest.raises(InputError, match="over the capacity"):
        lm.stream(prompt(4), CAPACITY)


def test_a_process_ends_with_a_stream_open() -> None:
    code = f"""
from monotile.generation.generator import generator
from tests.generation.test_stream import *
lm = generator(small(), {CAPACITY}, chunk=1, target="cpu", options=OPTIONS)
tokens = lm.stream(prompt(4), {CAPACITY - 4})
next(tokens)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=200)


@pytest.mark.wide  # another way of what a batch does there
@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    lm = generator(small(), 12, chunk=1, target="cpu", options=OPTIONS)
    ids = prompt(3)
    right = lm.generate(ids, 5)[0].tolist()
    call = lm.call(ids[0], 5)
    fast = Emulated(Step(lm.decoder, 12).eval(), call, iterate=iterated(12))
    news, stop = torch.full((12,), -1), torch.tensor(1)
    _, last, _ = fast(*call[:-2], news, call[-1])
    assert last == 7
    assert fast.states[fast.program.watched[0]].tolist() == [-1, *right[1:], *[-1] * 4]
    _, last, _ = fast(*call[:-2], news, stop)
    assert last == 1
    assert fast.states[fast.program.watched[0]].tolist() == [-1, right[1], *[-1] * 10]
