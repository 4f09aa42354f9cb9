"""Long Python loops with a fixed number of iterations: which are traced once, and that all are right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.loops import long_loops
from monotile.ir.program import Loop
from tests.conftest import wide
from tests.frontend.against import check
from tests.frontend.loop_networks import IN, WIDTH, Recurrent

STEPS = 24


class Over(Recurrent):
    """A function of a recurrent network and its input [batch, STEPS, IN]."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f
        self.mixed = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(STEPS))
        self.calls = 0
        self.one = nn.LSTMCell(IN, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.f(self, x)


def listed(model: Over, x: Tensor) -> Any:
    h, outs = torch.zeros(2, WIDTH), []
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
        outs.append(h)
    return torch.stack(outs, 1), h


def cells(model: Over, x: Tensor) -> Any:
    h = c = torch.zeros(2, WIDTH)
    for t in range(x.size(1)):
        h, c = model.one(x[:, t], (h, c))
    return h, c


def written(model: Over, x: Tensor) -> Any:
    h, out = torch.zeros(2, WIDTH), torch.zeros(2, STEPS, WIDTH)
    for t in range(STEPS):
        h = model.step(x[:, t], h)
        out[:, t] = h
    return out


def backward(model: Over, x: Tensor) -> Any:
    h, outs = torch.zeros(2, WIDTH), []
    for t in range(x.shape[1] - 1, -1, -1):
        h = model.step(x[:, t], h)
        outs.append(h)
    return torch.stack(outs[::-1], 1), outs[0], outs[3], len(outs)


def begins(model: Over, x: Tensor) -> Any:
    h = None
    for t in range(1, x.shape[1]):
        now = model.step(x[:, t], x[:, t - 1 : t].sum((1, 2))[:, None].expand(2, WIDTH))
        h = now if h is None else torch.tanh(h + now)
    return h


def twice(model: Over, x: Tensor) -> Any:
    return *listed(model, x), cells(model, x)


def by_layers(model: Over, x: Tensor) -> Any:
    h = x.sum(1) @ torch.ones(IN, WIDTH)
    for k in range(len(model.mixed)):
        h = torch.tanh(model.mixed[k](h))
    return h


def by_iterator(model: Over, x: Tensor) -> Any:
    h, layers = x.sum(1) @ torch.ones(IN, WIDTH), iter([*model.mixed[:1]] * 22 + [*model.mixed])
    for _ in range(STEPS):
        h = torch.tanh(next(layers)(h))
    return h


def by_number(model: Over, x: Tensor) -> Any:
    h = torch.zeros(2, WIDTH)
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h) / (t + 1)
    return h


def counting(model: Over, x: Tensor) -> Any:
    h, taken = torch.zeros(2, WIDTH), 0
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
        taken += 1
    return h / taken, taken


def by_calls(model: Over, x: Tensor) -> Any:
    h, before = torch.zeros(2, WIDTH), model.calls
    for t in range(x.shape[1]):
        model.calls += 1
        h = model.step(x[:, t], h)
        if model.calls - before > 21:
            h = h + 1
    return h


def noted(model: Over, x: Tensor) -> Any:
    h, notes = torch.zeros(2, WIDTH), {}
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
        notes[t] = h
    return sum(notes.values())


def noted_by_length(model: Over, x: Tensor) -> Any:
    h, notes = torch.zeros(2, WIDTH), {}
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
        notes[len(notes)] = h
    return sum(notes.values())


def left(model: Over, x: Tensor) -> Any:
    h, outs = torch.zeros(2, WIDTH), []
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
        outs.append(h)
        if len(outs) > 22:
            break
    return h


def alternating(model: Over, x: Tensor) -> Any:
    h = torch.zeros(2, WIDTH)
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
        if t % 2:
            h = h * 0.5
    return h


def widening(_: Over, x: Tensor) -> Any:
    h = torch.zeros(2, IN)
    for t in range(x.shape[1]):
        h = torch.tanh(h + x[:, : t + 1].sum(1))
    return h


def last_number(model: Over, x: Tensor) -> Any:
    h, t = torch.zeros(2, WIDTH), 0
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
    return h * t


def given(model: Over, x: Tensor) -> Any:
    outs, h = [], torch.zeros(2, WIDTH)
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
        outs.append(h)
    return outs


ONCE = (listed, cells, written, backward, begins, twice)
EACH = (by_layers, by_iterator, by_number, counting, by_calls, noted, noted_by_length, left, alternating, widening, last_number, given)  # fmt: skip


def _few_calls(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    monkeypatch.setattr(long_loops, "MIN_CALLS", 64)
    return torch.randn(2, STEPS, IN, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("f", [listed, backward, *map(wide, (cells, written, begins, twice))])
def test_traced_once(f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    body = check(Over(f).eval(), (_few_calls(monkeypatch),)).program.body
    assert any(isinstance(s, Loop) for s in body)


@pytest.mark.parametrize(
    "f", [by_layers, by_iterator, by_calls, noted, *map(wide, sorted({*EACH} - {by_layers, by_iterator, by_calls, noted}, key=lambda f: f.__name__))],
)  # fmt: skip
def test_traced_by_iteration(f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    body = check(Over(f).eval(), (_few_calls(monkeypatch),)).program.body
    assert not any(isinstance(s, Loop) for s in body)


def test_few_calls_are_traced_by_iteration() -> None:
    body = capture(Over(listed).eval(), (torch.randn(2, STEPS, IN),)).program.body
    assert not any(isinstance(s, Loop) for s in body)


def test_equal_iterations() -> None:
    """Iterations that read other weights, or compute with other numbers, are not equal."""
    graph = torch.fx.Graph()
    x, *weights = (graph.placeholder(f"p{k}") for k in range(20))
    aten = torch.ops.aten
    h = x
    for k in range(10):
        row = graph.call_function(aten.select.int, (x, 0, k))
        h = graph.call_function(aten.mul.Tensor, (h, row))
        h = graph.call_function(aten.add.Tensor, (h, weights[0]))
    assert long_loops.are_equal(graph, 3.0)
    assert not long_loops.are_equal(graph, 1.0)
    for k in range(10):
        h = graph.call_function(aten.add.Tensor, (h, weights[k]))
    assert not long_loops.are_equal(graph, 1.0)
    for k in range(10):
        h = graph.call_function(aten.mul.Tensor, (h, 0.5**k))
    assert not long_loops.are_equal(graph, 1.0)


def test_functions_without_a_text_have_no_loops() -> None:
    made: dict[str, Any] = {}
    text = "def f(x):\n    for t in range(40):\n        x = (x +\n             x[:, t])\n    return x\n"
    exec(compile(text, __file__, "exec"), made)  # whose lines are those of this file
    assert all(isinstance(x, long_loops.Loop) for x in long_loops.loops_of(made["f"].__code__))
    exec(compile(text, "<nowhere>", "exec"), made)
    assert long_loops.loops_of(made["f"].__code__) == ()
    assert [x.line for x in long_loops.loops_of(listed.__code__)] == [
        listed.__code__.co_firstlineno + 2
    ]
    assert not long_loops.loops_of(given.__code__.replace(co_names=()))
