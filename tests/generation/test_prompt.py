"""Prompts that are read in chunks: the tokens that follow are transformers' own."""

import copy
from collections.abc import Mapping

import numpy as np
import pytest
import torch

import monotile
from monotile.generation.decoder import Decoder
from monotile.generation.generator import Generator, generator
from monotile.generation.prompt import LEAST, Chunk, Reader
from monotile.kernels.attention.method import Attend
from monotile.kernels.elementwise.method import Map
from monotile.plan.nodes import Repeat
from monotile.plan.walk import stages_in
from monotile.runtime.tensors import from_numpy
from monotile.transform.iterate import Iterate
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide
from tests.frontend.sized import Sized
from tests.generation.test_generator import (
    CAPACITY,
    CHUNK,
    COUNTS,
    OPTIONS,
    SIZES,
    expected,
    model_of,
    prompt,
    random_model,
)

transformers = pytest.importorskip("transformers")
STEPS = torch.zeros(48, dtype=torch.bool)
WINDOWED = {
    "gemma2, window": lambda: transformers.Gemma2Config(head_dim=16, **{**SIZES, "sliding_window": 10}),
    "mistral, window": lambda: transformers.MistralConfig(head_dim=16, **{**SIZES, "sliding_window": 10}),
}  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("name", ["gemma2, window", wide("mistral, window")])
def test_windows_smaller_than_the_cache(name: str) -> None:
    model = random_model(WINDOWED[name]())
    lm = generator(model, CAPACITY, chunk=CHUNK, target="cpu", options=OPTIONS)
    for count in COUNTS:
        ids, more = prompt(count, count), CAPACITY - count
        assert torch.equal(lm.generate(ids, more), expected(model, ids, more))


def test_a_sequence_that_goes_on(llama: tuple[torch.nn.Module, Generator]) -> None:
    """Behind a long answer and a short one, with chunks that begin anywhere and one that is shifted back."""
    model, lm = llama
    written = lm.generate(prompt(4), 3)
    for count in (LEAST, 13, 2, 9):
        ids = torch.cat((written, prompt(count, count)), 1)
        written = lm.generate(prompt(count, count), 2, follow=True)
        assert torch.equal(written, expected(model, ids, 2))


def test_a_refused_call_changes_nothing(llama: tuple[torch.nn.Module, Generator]) -> None:
    model, lm = llama
    begun = lm.generate(prompt(20), 4)
    with pytest.raises(monotile.InputError):
        lm.generate(prompt(20, 1), 4, temperature=-1.0)
    both = torch.cat((begun, prompt(3)), 1)
    assert torch.equal(lm.generate(prompt(3), 4, follow=True), expected(model, both, 4))


def test_one_cache_and_one_set_of_parameters(llama: tuple[torch.nn.Module, Generator]) -> None:
    model, lm = llama
    assert lm.reader is not None
    assert lm.reader.kernel.kernels == 1
    known = {x.data_ptr() for x in (*model.parameters(), *lm.decoder.buffers())}
    for kernel in (lm.kernel, lm.reader.kernel):
        held = kernel._weights.tensors
        assert {n for n in held if held[n].data_ptr() not in known} <= {"decoder.model.model.rotary_emb.inv_freq"}  # fmt: skip
        assert "lm_head" not in "".join(lm.reader.kernel.artifact.parameters)


def test_new_weights_are_seen(llama: tuple[torch.nn.Module, Generator]) -> None:
    model, lm = llama
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.mul_(-1)
    assert torch.equal(lm.generate(prompt(30), 10), expected(model, prompt(30), 10))
    weight.mul_(-1)


def test_it_compiles_for_a_gpu() -> None:
    decoder = Decoder(model_of("llama"), 1, CAPACITY)
    ids = torch.zeros(CAPACITY, dtype=torch.int64)
    reader = Reader(decoder, 16, (ids,), "cuda:sm_90a", OPTIONS)
    assert "monotile_kernel" in reader.kernel.source


@pytest.mark.wide
@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("dtype", [wide(torch.float16), torch.bfloat16], ids=str)
def test_layers_that_are_a_loop_stream_their_keys(dtype: torch.dtype) -> None:
    """The caches of all layers are one table, whose row depends on the loop."""
    sizes = {**SIZES, "num_hidden_layers": 4, "hidden_size": 64}
    model = random_model(transformers.LlamaConfig(**sizes)).to(dtype)
    for p in model.parameters():
        p.data *= 0.5
    decoder = Decoder(model, 1, 32)
    wide = Decoder(copy.deepcopy(model).double(), 1, 32)
    ids, numbers = prompt(32)[0], (torch.tensor(0), torch.tensor(True), torch.tensor(20), STEPS[:8])
    fast = Emulated(Chunk(decoder).eval(), (ids, *numbers), iterate=Iterate((1, 2), 1, 4, unread=False))  # fmt: skip
    (loop,) = (n for n in fast.plan.body if isinstance(n, Repeat))
    (layers,) = (n for n in loop.body if isinstance(n, Repeat))
    (step,) = (s for stage in stages_in(layers.body) for s in stage.steps if isinstance(s.method, Attend))  # fmt: skip
    assert step.bounds
    fast(ids, *numbers)
    for begin in (0, 8, 16):
        Chunk(wide)(ids, torch.tensor(begin), *numbers[1:])
    for name, x in fast.states.items():
        if name.startswith("decoder."):  # the last layer's
            found, right = from_numpy(x).double(), wide.get_buffer(name.removeprefix("decoder."))
            off = (found - right)[:, :, :20].abs().max() / right.abs().max()
            assert off < (0.002 if dtype is torch.float16 else 0.02)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    """The caches after it are PyTorch's."""
    decoder = Decoder(model_of("llama"), 1, 12)
    module, ids = Chunk(decoder).eval(), prompt(12)[0]
    numbers = torch.tensor(0), torch.tensor(True), torch.tensor(9), STEPS[:4]
    fast = Emulated(module, (ids, *numbers), iterate=Iterate((1, 2), 1, 3, unread=False))
    at, goes_on = fast(ids, *numbers)
    assert int(at) == 12
    assert not goes_on
    _same_caches(fast.states, decoder, numbers, ids)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_any_number_of_tokens_on_the_emulator() -> None:
    """The rows of each chunk lie in the caches."""
    decoder, ids = Decoder(model_of("llama"), 1, 64), prompt(64)[0]
    module = Chunk(decoder).eval()
    numbers = torch.tensor(0), torch.tensor(True), torch.tensor(60), STEPS[:48]
    tokens = torch.export.Dim("tokens", min=4, max=48)
    sized = Sized(module, (ids, *numbers), ({}, {}, {}, {}, {0: tokens}))
    fast = Emulated(sized.captured, (ids, *numbers), iterate=Iterate((1, 2), 1, 16, unread=False))
    copies = [s for stage in stages_in(fast.plan.body) for s in stage.steps if s.computes[0].startswith("index_copy")]  # fmt: skip
    assert len(copies) == 4
    assert all(isinstance(s.method, Map) for s in copies)
    for end, count in ((48, 48), (40, 40), (60, 30), (9, 5)):
        call = (*numbers[:2], torch.tensor(end), STEPS[:count])
        values = sized.values(fast.program, (ids, *call), fast.constants)
        at, goes_on, *states = emulate(fast.program, fast.plan, fast.source, values, seed=end)
        assert int(at) >= end
        assert not goes_on
        found = dict(zip(fast.program.states, states, strict=True))
        _same_caches(found, decoder, call, ids)


def _same_caches(
    states: Mapping[str, np.ndarray],
    decoder: Decoder,
    numbers: tuple[torch.Tensor, ...],
    ids: torch.Tensor,
) -> None:
    """Those of PyTorch after the same chunks, up to where they end."""
    begun, goes_on, end, steps = numbers
    at = begun
    while at < end:
        at, _ = Chunk(decoder)(ids, at, goes_on, end, steps)
    assert len(states) == 4
    for name, x in states.items():
        right = decoder.get_buffer(name.removeprefix("decoder."))[:, :, : int(end)]
        torch.testing.assert_close(torch.from_numpy(x)[:, :, : int(end)], right)


@pytest.mark.wide
def test_a_model_that_fixes_the_number_of_tokens() -> None:
    """It reads so many at a time, those behind the prompt too."""

    class Fixed(transformers.LlamaForCausalLM):
        def forward(self, input_ids: torch.Tensor, **given: object) -> object:
            found = super().forward(input_ids, **given)
            if input_ids.shape[1] > 1:  # as a table for certain lengths is looked up
                assert {16: 0, 2: 0}.get(int(input_ids.shape[1]), 1) == 0
            return found

    torch.manual_seed(0)
    plain = model_of("llama")
    model = Fixed(plain.config).eval().requires_grad_(False)
    model.load_state_dict(plain.state_dict())
    lm = generator(model, CAPACITY, chunk=16, target="cpu", options=OPTIONS)
    assert lm.reader is not None
    assert not lm.reader.sized
    for count in (LEAST + 2, 17, 20, 40):
        assert torch.equal(lm.generate(prompt(count), 6), expected(plain, prompt(count), 6))


@pytest.mark.wide
def test_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that is too large makes chunks shorter."""
    monkeypatch.setattr("monotile.generation.prompt.ROOM", 1)
    monkeypatch.setattr("monotile.generation.prompt.FIXED", LEAST)
    model = model_of("llama")
    lm = generator(model, CAPACITY, target="cpu", options=OPTIONS)
    assert lm.reader is not None
    assert (lm.reader.sized, lm.reader.chunk) == (True, LEAST)
    for count in (LEAST + 2, 25):
        assert torch.equal(lm.generate(prompt(count), 6), expected(model, prompt(count), 6))
