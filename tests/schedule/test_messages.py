"""Messages: which loops hand on by them, and Plans that the verifier refuses."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from monotile.analysis.states import steady_weights
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.kernels.registry import read_plan
from monotile.passes.plans import computes_of
from monotile.plan.check.structure import verify
from monotile.plan.launch import Launch
from monotile.plan.nodes import Dim, Plan, Repeat, Stage
from monotile.plan.places import BoxDim, Shared
from monotile.plan.printer import show_stages
from monotile.schedule import rows
from monotile.schedule.pinned import hold
from tests.codegen.recurrent import H100, Built, Cells, build

replace = msgspec.structs.replace
Change = Callable[[Repeat], Repeat]


def lstm(width: int = 256, layers: int = 3, batch: int = 1, **more: Any) -> Built:
    x = torch.randn(6, batch, width)
    return build(lambda: nn.LSTM(width, width, layers, **more), x, Options())


LSTM = lstm()
TWO = build(lambda: Cells(256, 2, hidden=True), torch.randn(6, 1, 256), Options())


def changed(b: Built, f: Change) -> Plan:
    body = tuple(f(n) if isinstance(n, Repeat) else n for n in b.plan.body)
    return replace(b.plan, body=body)


def refused(b: Built, plan: Plan, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        verify(plan, b.program, H100)


def stages(f: Callable[[Stage], Stage]) -> Change:
    return lambda n: replace(n, body=tuple(f(s) for s in n.body if isinstance(s, Stage)))


def test_states_are_messages_and_cells_are_not() -> None:
    (loop,) = LSTM.loops
    assert [m.tensor for m in loop.messages] == ["lstm_l0_hidden_next"]
    assert [r.tensor for r in loop.receives] == ["lstm_l0_hidden_rows"]
    assert loop.handoff == "grid"
    text = show_stages(LSTM.plan)
    assert "loop wave:8, after grid barrier" in text
    assert "receives lstm_l0_hidden_rows, lstm_l0_hidden_next of the iteration before" in text
    assert read_plan(LSTM.plan.to_json()) == LSTM.plan


def test_two_stages_of_one_iteration() -> None:
    (loop,) = TWO.loops
    assert len(loop.body) == 2
    same = [r for r in loop.receives if r.tensor == r.message]
    assert [r.stage for r in same] == [loop.body[1].name]  # type: ignore[union-attr]
    box = next(r for r in loop.receives if r not in same).place.box[0]
    assert box == BoxDim(0, 1, 2)  # a task of one layer reads its own row and the one below


def test_a_batch_keeps_to_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tasks have a row each."""
    monkeypatch.setattr(rows, "FEW", 0)
    (loop,) = lstm(layers=2, batch=4).loops
    (receive,) = loop.receives
    assert [(d.stage, d.extent) for d in receive.place.box] == [(0, 2), (1, 1), (None, 256)]


def test_few_rows_are_all_in_each_task() -> None:
    """Then a worker has some columns of the weights, which it keeps, and reads every row of the state."""
    (loop,) = lstm(layers=2, batch=4).loops
    (receive,) = loop.receives
    assert [(d.stage, d.extent) for d in receive.place.box][1:] == [(None, 4), (None, 256)]
    assert loop.resident


def test_a_task_of_one_layer_reads_two_rows() -> None:
    """Its own and the one below; the row of the network's input has no task of its own."""
    (loop,) = LSTM.loops
    (stage,), (receive,) = loop.body, loop.receives
    assert isinstance(stage, Stage)
    assert stage.grid == (3, 1, 43)
    assert [(d.stage, d.extent) for d in receive.place.box] == [(0, 2), (None, 1), (None, 256)]
    (rows,) = (s.dims[0] for s in stage.steps if "lstm_l0_hidden_next" in s.computes)
    assert rows == Dim((0,), 4, 1, 0, lead=1)


def test_weights_are_held_in_registers() -> None:
    """As far as they suffice; where a product needs them, none."""
    for b in (LSTM, TWO):
        assert all(r.held for loop in b.loops for r in loop.resident)
    assert "on chip and in registers: " in show_stages(LSTM.plan)
    few = replace(H100, registers=128 * H100.threads)
    held = [
        [
            [r.held for r in n.resident]
            for n in hold(b.plan.body, computes_of(b.program), steady_weights(b.program), few)
            if isinstance(n, Repeat)
        ]
        for b in (LSTM, TWO)
    ]
    assert held == [[[False]], [[True, True]]]
    much = changed(
        LSTM, lambda n: replace(n, resident=tuple(replace(r, nbytes=1 << 20) for r in n.resident))
    )
    refused(LSTM, much, "bytes in registers|bytes on chip")


def test_projections() -> None:
    first, second = lstm(layers=2, proj_size=128).loops
    assert len(first.messages) == len(second.messages) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (stages(lambda s: replace(s, handoff="none")), "hands on messages"),
        (stages(lambda s: replace(s, grid=(3, 1, 86))), "hands on messages|never computed|no part"),
        (lambda n: replace(n, handoff="none"), "begins without waiting"),
        (lambda n: replace(n, messages=()), "waits for messages and has none"),
        (lambda n: replace(n, receives=()), "task of another worker"),
        (lambda n: replace(n, receives=n.receives * 2), "twice|share on-chip"),
        (
            lambda n: replace(n, receives=tuple(replace(r, vector=4) for r in n.receives)),
            "cannot receive 4 values",
        ),
        (
            lambda n: replace(n, resident=tuple(replace(r, vector=3) for r in n.resident)),
            "3 elements at once",
        ),
        (lambda n: replace(n, messages=n.messages * 2), "share memory"),
        (
            lambda n: replace(n, messages=tuple(replace(m, offset=16 << 20) for m in n.messages)),
            "past the",
        ),
        (
            lambda n: replace(n, messages=tuple(replace(m, tensor="lstm_1") for m in n.messages)),
            "no message",
        ),
        (
            lambda n: replace(
                n, receives=tuple(replace(r, tensor="lstm_l0_cell_rows") for r in n.receives)
            ),
            "not what|task of another",
        ),
        (
            lambda n: replace(n, receives=tuple(_smaller(r) for r in n.receives)),
            "more of lstm_l0_hidden_rows than it receives",
        ),
        (
            lambda n: replace(
                n, receives=tuple(replace(r, place=replace(r.place, offset=0)) for r in n.receives)
            ),
            "share on-chip memory",
        ),
    ],
)
def test_refused(change: Change, words: str) -> None:
    refused(LSTM, changed(LSTM, change), words)


def _smaller(r: Any) -> Any:
    first, *rest = r.place.box
    box = (BoxDim(None, first.extent - 1, first.extent - 1), *rest)
    return replace(r, place=Shared(r.place.offset, box, r.place.pitch))


def test_values_made_later_cannot_be_waited_for() -> None:
    turned = changed(TWO, lambda n: replace(n, body=n.body[::-1]))
    refused(TWO, turned, "made after it|before anything wrote it")


def test_little_memory() -> None:
    launch: Launch = replace(LSTM.plan.launch, message_bytes=64)
    refused(LSTM, replace(LSTM.plan, launch=launch), "reaches past the 64 bytes for messages")


def test_what_was_a_task_s_own_is_shared_on_other_workers() -> None:
    """The two stages of an iteration on workers of their own: what the second keeps of the first is another's then."""

    def apart(n: Repeat) -> Repeat:
        first, second = (s for s in n.body if isinstance(s, Stage))
        return replace(n, body=(first, replace(second, first=5)))

    verify(TWO.plan, TWO.program, H100)
    verify(changed(TWO, apart), TWO.program, H100)  # all that crosses is a message


def test_loops_inside_a_loop() -> None:
    """Of as many nodes as there are stages."""
    b = lstm(16, 4, bidirectional=True)
    inner = [n for n in b.loops if all(isinstance(s, Stage) for s in n.body)]
    assert len(inner) < len(b.loops)
    assert all(n.messages for n in inner)
