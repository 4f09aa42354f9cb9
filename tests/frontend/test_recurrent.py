"""Recurrent layers and cells."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._decomp import decompositions

from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.frontends.torch.rewriting.decompose import decompose
from monotile.ir.program import Compute, Loop
from tests.frontend.against import check


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(4, 6, 2),
        lambda: nn.LSTM(4, 6, 2, bidirectional=True, bias=False),
        lambda: nn.LSTM(4, 6, bidirectional=True, batch_first=True),
        lambda: nn.GRU(4, 6, 2, bidirectional=True),
        lambda: nn.GRU(4, 6, bias=False),
        lambda: nn.RNN(4, 6, 2),
        lambda: nn.RNN(4, 6, nonlinearity="relu", bidirectional=True),
    ],
)
def test_layers(make: Callable[[], nn.Module]) -> None:
    check(make(), (torch.randn(5, 3, 4),))


def test_initial_states_and_half() -> None:
    check(nn.LSTM(4, 6), (torch.randn(5, 3, 4), (torch.randn(1, 3, 6), torch.randn(1, 3, 6))))
    check(nn.GRU(4, 6).half(), (torch.randn(5, 4).half(), torch.randn(1, 6).half()))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projection() -> None:
    check(nn.LSTM(4, 6, 2, proj_size=3, bidirectional=True), (torch.randn(5, 3, 4),))


def test_cells() -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTMCell(4, 6), nn.GRUCell(6, 6)
            self.tanh, self.relu = nn.RNNCell(6, 6), nn.RNNCell(6, 6, nonlinearity="relu")

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            h, c = self.lstm(x)
            g = self.gru(h, c)
            return h, c, g, self.relu(self.tanh(g), h)

    check(Cells(), (torch.randn(3, 4),))


def test_every_layer_is_one_loop_of_one_shape() -> None:
    program = capture(nn.LSTM(6, 6, 3), (torch.randn(5, 2, 6),)).program
    loops = [s for s in program.body if isinstance(s, Loop)]
    assert [loop.axis.extent for loop in loops] == [5, 5, 5]
    kinds = [[s.combiner for s in loop.body if isinstance(s, Compute)] for loop in loops]
    assert kinds == [["sum", "sum", None, None]] * 3


class EncoderAndDecoder(nn.Module):
    """The second LSTM begins with the final states of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.LSTM(4, 6, 2), nn.LSTM(4, 6, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _, state = self.encoder(x)
        return self.decoder(y, state)[0]


def test_final_states_of_a_batch_are_initial_states() -> None:
    check(EncoderAndDecoder(), (torch.randn(5, 3, 4), torch.randn(2, 3, 4)))


def test_final_states_where_the_tracer_squeezes_another_axis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As PyTorch 2.11 does."""
    layer = decompositions.one_layer_lstm

    def as_before(*args: Any, **more: Any) -> Any:
        out, states = layer(*args, **more)
        return out, tuple(x.unsqueeze(0).squeeze(1) for x in states)

    monkeypatch.setattr(decompositions, "one_layer_lstm", as_before)
    check(EncoderAndDecoder(), (torch.randn(5, 3, 4), torch.randn(2, 3, 4)))


def test_final_states_have_their_own_shape_whatever_the_tracer_says() -> None:
    """PyTorch 2.11 traces them as [layers, 1, batch, width]."""
    model, x = nn.LSTM(4, 6, 2), torch.randn(5, 3, 4)
    exported = decompose(export(model, (x,)))
    for node in exported.graph.nodes:
        if node.target is torch.ops.aten.lstm.input:
            out, h, c = node.meta["val"]
            node.meta["val"] = (out, h.unsqueeze(1), c.unsqueeze(1))
    program = capture(exported).program
    assert [t.shape for t in program.outputs] == [(5, 3, 6), (2, 3, 6), (2, 3, 6)]
