"""Recurrent layers and cells."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.decompose import decompose
from monotile.frontends.torch.export import export
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


def test_final_states_have_their_own_shape_whatever_the_tracer_says() -> None:
    """On a GPU PyTorch 2.11 traces them as [layers, 1, batch, width]."""
    model, x = nn.LSTM(4, 6, 2), torch.randn(5, 3, 4)
    exported = decompose(export(model, (x,)))
    for node in exported.graph.nodes:
        if node.target is torch.ops.aten.lstm.input:
            out, h, c = node.meta["val"]
            node.meta["val"] = (out, h.unsqueeze(1), c.unsqueeze(1))
    program = capture(exported).program
    assert [t.shape for t in program.outputs] == [(5, 3, 6), (2, 3, 6), (2, 3, 6)]
