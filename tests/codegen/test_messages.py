"""Recurrences whose tasks hand values to each other with tags, on the emulator, against PyTorch."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

from monotile.config import Options
from monotile.plan.nodes import Stage
from monotile.targets.cuda.build import build as build_cubin
from monotile.targets.cuda.emit import emit
from tests.codegen.emulate import COMPILER, Memory
from tests.codegen.recurrent import H100, Built, Cells, build

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
OPTIONS = Options(workers=11, cache=False)
WIDTH = 16


class Normed(nn.Module):
    """Layers that each give the rows of their input normalised, and hand another function of it on."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.scales = nn.ParameterList(torch.rand(WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        out = list[Tensor]()
        for scale in self.scales:
            normed = torch.softmax(x, -1) if self.form == "softmax" else F.rms_norm(x, (WIDTH,))
            out.append(normed * scale)
            x = torch.tanh(x * 0.9)
        return [*out, x]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(WIDTH, WIDTH, 3), (5, 1, WIDTH)),
    "lstm_one_layer_batch": (lambda: nn.LSTM(WIDTH, WIDTH, 1), (6, 3, WIDTH)),
    "lstm_f16": (lambda: nn.LSTM(WIDTH, WIDTH, 2).half(), (4, 1, WIDTH)),
    "lstm_bidirectional": (lambda: nn.LSTM(WIDTH, WIDTH, 1, bidirectional=True), (4, 1, WIDTH)),
    "gru_batch": (lambda: nn.GRU(WIDTH, WIDTH, 2), (5, 2, WIDTH)),
    "rnn_odd": (lambda: nn.RNN(13, 13, 2), (5, 1, 13)),
    "lstm_a_layer_a_task": (lambda: nn.LSTM(20, 20, 5), (4, 1, 20)),
    "by_hand": (lambda: Cells(WIDTH, 3), (5, 1, WIDTH)),
    "by_hand_two_stages": (lambda: Cells(128, 1, hidden=True), (4, 1, 128)),
    "softmax": (lambda: Normed("softmax"), (2, 3, WIDTH)),
    "rms_norm": (lambda: Normed("rms_norm"), (2, 3, WIDTH)),
}


def checked(b: Built, x: torch.Tensor, memory: Memory, seed: int) -> None:
    limit = 4e-3 if x.dtype is torch.float16 else 2e-5
    for got, wanted in zip(b.run(x, memory, seed), b.wanted(x), strict=True):
        wide = wanted.astype(np.float64)
        np.testing.assert_allclose(got.reshape(wide.shape), wide, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", MODELS)
def test_calls_in_a_row(name: str) -> None:
    """No value of the call before is taken for one of this call, though no memory is cleared between."""
    make, shape = MODELS[name]
    torch.manual_seed(1)
    x = torch.randn(shape)
    x = x.half() if name.endswith("f16") else x
    b = build(make, x, OPTIONS)
    assert all(loop.messages for loop in b.loops)
    assert all(s.handoff == "block" for loop in b.loops for s in loop.body)
    memory = b.memory()
    for call in range(3):
        checked(b, x * (1 - call), memory, seed=call)
    assert memory.sync.view(np.uint32)[2] == 3 * len(b.loops)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_received_is_not_read_elsewhere(name: str) -> None:
    """A message orders no other memory: once it is there, its values are read on chip, never where the maker keeps them as well."""
    make, shape = MODELS[name]
    x = torch.randn(shape)
    b = build(make, x.half() if name.endswith("f16") else x, OPTIONS)
    text = emit(b.program, b.plan, H100, OPTIONS).text
    for loop in b.loops:
        for r in loop.receives:
            head, body = re.findall(rf"void {r.stage}\((.*?)\) {{\n(.*?)\n}}\n", text, re.DOTALL)[0]
            after = body[body.rindex("mt::receive<") :]
            for kept in re.findall(rf"\b{r.tensor}_\d+\b", head):
                assert not re.search(rf"\b{kept}\b", after), f"{r.stage} reads {kept}"


def test_profile() -> None:
    """A wait for messages is a record of its own; the tasks begin after it."""
    make, shape = MODELS["by_hand"]
    options = Options(workers=4, profile=True, cache=False)
    b = build(make, torch.randn(shape), options)
    found = b.profile(torch.randn(shape))
    assert found.dropped == 0
    (loop,) = b.loops
    (stage,) = loop.body
    assert isinstance(stage, Stage)
    own = [r for r in found.records if r.stage == stage.name and r.worker == 0]
    kinds = [r.kind for r in own]
    assert kinds == ["fill", *(["wait", "wait", "task"] * loop.extent)]
    assert {r.iteration for r in own[1:]} == {(i,) for i in range(loop.extent)}


def test_many_values_go_through_barriers() -> None:
    """What would not stay in the cache is handed on as before."""
    small = replace(H100, l2_bytes=4 * 1024)
    b = build(lambda: nn.LSTM(WIDTH, WIDTH, 2), torch.randn(5, 1, WIDTH), OPTIONS, small)
    (loop,) = b.loops
    assert not loop.messages
    assert b.plan.launch.message_bytes == 0
    assert [s.handoff for s in loop.body if isinstance(s, Stage)] == ["grid"]


def test_builds() -> None:
    """NVRTC takes it, with 64-bit accesses that the memory model keeps whole."""
    b = build(lambda: nn.LSTM(256, 256, 4), torch.randn(8, 1, 256), Options(cache=False))
    text = build_cubin(emit(b.program, b.plan, H100, b.options).text, H100, b.options).ptx
    assert "ld.relaxed.gpu.global.v2.b64" in text
    assert "st.relaxed.gpu.global.b64" in text


class Turned(nn.Module):
    """A recurrence whose input [steps, 1 + width, width] is a vector and the matrix that turns it, of its own in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(1, WIDTH)
        for t in range(x.shape[0]):
            h = torch.tanh(x[t, :1] @ x[t, 1:] + self.state(h))
        return h


def test_steps_that_read_no_message_come_before_the_wait() -> None:
    """What a step makes of its input does not wait for its state."""
    b = build(Turned, torch.randn(6, 1 + WIDTH, WIDTH), OPTIONS)
    (loop,) = b.loops
    (stage,) = loop.body
    assert isinstance(stage, Stage)
    text = emit(b.program, b.plan, H100, OPTIONS).text
    body = text[text.index(f"void {stage.name}(") :]
    first = stage.steps[0].computes[0]
    made = body.index(f"{first}_", body.index(f"{first}_") + 1)  # behind where it lies
    assert made < body.index("mt::receive<") < body.index("tanh_f32(")
