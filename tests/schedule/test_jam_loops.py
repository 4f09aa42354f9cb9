"""Independent loops of equal extent become one, whose stages have workers of their own; on the emulator and by the evaluator, against PyTorch."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from monotile.config import Options
from monotile.errors import VerificationError
from monotile.ir.program import Loop, Program, statements
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Repeat, Stage
from monotile.schedule import rows
from monotile.targets.cuda.emit import emit
from tests.codegen.emulate import COMPILER
from tests.codegen.recurrent import H100, Built, build
from tests.conftest import wide

replace = msgspec.structs.replace
OPTIONS = Options(workers=11, cache=False)
WIDTH = 16


class Two(nn.Module):
    """Two recurrences of `steps` steps each. chained: the second reads what the first makes."""

    def __init__(self, *, steps: tuple[int, int] = (5, 5), chained: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(WIDTH, WIDTH), nn.GRU(WIDTH, WIDTH)
        self.steps, self.chained = steps, chained

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, _ = self.first(x[: self.steps[0]])
        b, _ = self.second(a.flip(0) if self.chained else x[: self.steps[1]])
        return a, b


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gru": (lambda: nn.GRU(WIDTH, WIDTH, 1, bidirectional=True), (5, 1, WIDTH)),
    "gru_layers": (lambda: nn.GRU(WIDTH, WIDTH, 4, bidirectional=True), (4, 1, WIDTH)),
    "gru_batch": (lambda: nn.GRU(WIDTH, WIDTH, 2, bidirectional=True, batch_first=True), (3, 4, WIDTH)),
    "lstm_f16": (lambda: nn.LSTM(WIDTH, WIDTH, 3, bidirectional=True).half(), (4, 1, WIDTH)),
    "lstm_batch_f16": (lambda: nn.LSTM(WIDTH, WIDTH, 3, bidirectional=True).half(), (4, 8, WIDTH)),
    "projections": (lambda: nn.LSTM(WIDTH, WIDTH, 2, bidirectional=True, proj_size=8), (4, 1, WIDTH)),
}  # fmt: skip


def steps(b: Built) -> list[Repeat]:
    """The loops with stages alone."""
    return [n for n in b.loops if all(isinstance(s, Stage) for s in n.body)]


def given(name: str) -> tuple[Callable[[], nn.Module], Tensor]:
    make, shape = MODELS[name]
    torch.manual_seed(1)
    x = torch.randn(shape)
    return make, x.half() if name.endswith("f16") else x


def check(b: Built, x: Tensor, found: list[np.ndarray]) -> None:
    limit = 4e-3 if x.dtype is torch.float16 else 2e-5
    for got, wanted in zip(found, b.wanted(x), strict=True):
        wide = wanted.astype(np.float64)
        np.testing.assert_allclose(got.reshape(wide.shape), wide, rtol=limit, atol=limit)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize(
    "name", [n if n in ("gru", "gru_layers", "lstm_f16") else wide(n) for n in MODELS]
)
def test_directions_side_by_side(name: str) -> None:
    """In calls one after the other, without memory cleared between."""
    make, x = given(name)
    b = build(make, x, OPTIONS)
    memory = b.memory()
    for call in range(2):
        y = x * (1 - 2 * call)
        check(b, y, b.run(y, memory, seed=call))


@pytest.mark.parametrize("name", ["gru", "gru_layers", "lstm_f16"])
def test_each_direction_has_workers_and_messages_of_its_own(name: str) -> None:
    make, x = given(name)
    for loop in steps(build(make, x, OPTIONS)):
        forward, backward = loop.body
        assert isinstance(forward, Stage)
        assert isinstance(backward, Stage)
        tasks = [int(np.prod(s.grid)) for s in (forward, backward)]
        assert (forward.first, backward.first) == (0, tasks[0])
        assert sum(tasks) <= 11
        assert [s.handoff for s in loop.body] == ["block", "block"]
        assert len(loop.messages) == 2
        assert {r.stage for r in loop.resident} == {forward.name, backward.name}


def test_layers_inside_a_loop_hand_on_messages() -> None:
    """Half of the nodes of the loop over the layers are loops, and so all steps but the first layer's are inside it."""
    b = build(lambda: nn.GRU(WIDTH, WIDTH, 4, bidirectional=True), torch.randn(5, 1, WIDTH), OPTIONS)  # fmt: skip
    (layers,) = (n for n in b.loops if n not in steps(b))
    inner = [n for n in layers.body if isinstance(n, Repeat)]
    assert [bool(n.messages) for n in inner] == [True]


def test_wide_layers_share_the_workers() -> None:
    b = build(lambda: nn.GRU(256, 256, bidirectional=True), torch.randn(4, 1, 256), Options())
    (loop,) = b.loops
    assert [(s.first, s.grid) for s in loop.body if isinstance(s, Stage)] == [(0, (1, 64)), (64, (1, 64))]  # fmt: skip


def extents(program: Program) -> list[int]:
    return [s.axis.extent for s in statements(program.body) if isinstance(s, Loop)]


@pytest.mark.parametrize(
    ("more", "loops"), [({}, [5]), ({"steps": (5, 4)}, [4, 5]), ({"chained": True}, [5, 5])]
)
def test_two_recurrences(more: dict[str, Any], loops: list[int]) -> None:
    x = torch.randn(6, 1, WIDTH)
    b = build(lambda: Two(**more), x, OPTIONS)
    assert sorted(extents(b.program)) == loops
    if COMPILER is not None:
        check(b, x, b.run(x))


def test_directions_keep_their_weights_in_the_same_place() -> None:
    """No worker has both, neither on chip nor in registers."""
    make, x = given("gru_layers")
    b = build(make, x, Options(workers=16, cache=False))
    for loop in steps(b):
        forward, backward = (
            [r.place for r in loop.resident if r.stage == s.name] for s in loop.body
        )
        assert forward == backward
        assert all(r.held for r in loop.resident)
    text = emit(b.program, b.plan, H100, OPTIONS).text
    assert "& held_p_weight_hh_l0_reverse_kept1 = held_p_weight_hh_l0_kept0;" in text
    if COMPILER is not None:
        check(b, x, b.run(x))


def test_what_workers_of_one_stage_keep_has_a_place_of_its_own() -> None:
    make, x = given("gru")
    b = build(make, x, OPTIONS)
    (loop,) = b.loops
    together = tuple(replace(s, first=0) for s in loop.body if isinstance(s, Stage))
    moved = replace(loop, body=together)
    body = tuple(moved if n == loop else n for n in b.plan.body)
    with pytest.raises(VerificationError, match="share on-chip memory"):
        verify(replace(b.plan, body=body), b.program, H100)


def test_loops_stay_where_half_of_the_workers_have_no_room_for_their_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of layers of 448 features the product with the state fits for one direction at a time, where tasks have a row each."""
    monkeypatch.setattr(rows, "FEW", 0)
    b = build(lambda: nn.GRU(448, 448, 4, bidirectional=True), torch.randn(4, 8, 448), Options())
    layers = next(n for n in b.loops if n not in steps(b))
    inside = [n for n in layers.body if isinstance(n, Repeat)]
    assert len(inside) == 2
    assert len(steps(b)) == 2 * len(inside)
    for loop in steps(b):
        assert len(loop.resident) == len(loop.body) == 1
