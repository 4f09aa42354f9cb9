"""PyTorch's own recurrent layers, and recurrences written by hand, all come out as one wavefront."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Loop, Program, statements
from monotile.ir.verify import verify
from monotile.pipeline import transform

WIDTH, BATCH = 4, 2


class ByHand(nn.Module):
    """Layers of LSTM cells, by steps or by layers first; gates in one product and chunked."""

    def __init__(self, layers: int, steps_first: bool) -> None:
        super().__init__()
        self.steps_first = steps_first
        self.w = nn.ParameterList(torch.randn(4 * WIDTH, WIDTH) * 0.3 for _ in range(layers))
        self.u = nn.ParameterList(torch.randn(4 * WIDTH, WIDTH) * 0.3 for _ in range(layers))
        self.b = nn.ParameterList(torch.randn(4 * WIDTH) * 0.3 for _ in range(layers))

    def cell(self, k: int, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = x @ self.w[k].T + h @ self.u[k].T + self.b[k]
        i, f, g, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        layers = range(len(self.w))
        h = [torch.zeros(BATCH, WIDTH) for _ in layers]
        c = [torch.zeros(BATCH, WIDTH) for _ in layers]
        out = list(x)
        pairs = [(k, t) for t in range(len(out)) for k in layers]
        for k, t in pairs if self.steps_first else sorted(pairs):
            h[k], c[k] = self.cell(k, out[t], h[k], c[k])
            out[t] = h[k]
        return torch.stack(out), torch.stack(h)


def compiled(model: nn.Module, x: Tensor) -> Program:
    """The optimised Program, checked against the model and after every pass."""
    model.eval()
    captured = capture(export(model, (x,), None))
    program, constants = transform(
        captured.program, captured.constants, Options(), lambda _, p: verify(p)
    )
    values = {name: p.detach().numpy() for name, p in captured.parameters.items()}
    values |= {**constants, captured.program.inputs[0].name: x.numpy()}
    wanted = [t.detach().numpy() for t in pytree.tree_leaves(model(x))]
    for a, b in zip(evaluate(program, values), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return program


def waves(p: Program) -> list[int]:
    return [s.axis.extent for s in statements(p.body) if isinstance(s, Loop)]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
def test_layers_of_pytorch(kind: type[nn.RNNBase], batch_first: bool) -> None:
    shape = (BATCH, 5, WIDTH) if batch_first else (5, BATCH, WIDTH)
    p = compiled(kind(WIDTH, WIDTH, num_layers=3, batch_first=batch_first), torch.randn(shape))
    assert waves(p) == [3 + 5 - 1]


@pytest.mark.parametrize("steps_first", [False, True])
def test_cells_by_hand(steps_first: bool) -> None:
    x = torch.randn(5, BATCH, WIDTH)
    p = compiled(ByHand(3, steps_first), x)
    assert waves(p) == [3 + 5 - 1]
    assert len(list(statements(p.body))) < 12
