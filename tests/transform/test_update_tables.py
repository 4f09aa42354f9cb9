"""States of rolled layers as a table that the loop carries."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Loop, Program, state_names
from monotile.ir.verify import verify
from monotile.pipeline import transform

LAYERS, WIDTH = 4, 8


class Remembers(nn.Module):
    """Layers with a cache each. how: by rows, all of it, or by what it held before."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        for k in range(LAYERS):
            self.register_buffer(f"cache_{k}", torch.zeros(5, WIDTH))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers):
            cache = getattr(self, f"cache_{k}")
            row = torch.tanh(layer(x))
            if self.how == "rows":
                cache.index_copy_(0, at, row)
            elif self.how == "whole":
                cache.copy_(row.expand(5, WIDTH))
            else:
                cache.mul_(0.5).add_(row)
            x = x + cache.sum(0, keepdim=True)
        return x


class Nested(nn.Module):
    """Twice three layers of one kind and one of another, and one more; the last reads a cache of the first kind."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(9))
        for k in range(8):
            self.register_buffer(f"cache_{k}", torch.zeros(5 if k % 4 < 3 else 6, WIDTH))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        for k in range(8):
            cache = getattr(self, f"cache_{k}")
            row = torch.tanh(self.layers[k](x))
            if self.how == "rows":
                cache.index_copy_(0, at, row)
            else:
                cache.mul_(0.5).add_(row)
            x = x + cache.sum(0, keepdim=True) if k % 4 < 3 else x - cache.amax(0, keepdim=True)
        return x + self.layers[8](self.cache_6.amin(0, keepdim=True))


def program_of(model: nn.Module) -> tuple[Program, dict[str, np.ndarray]]:
    x, at = torch.randn(1, WIDTH), torch.tensor([2])
    captured = capture(model.eval(), (x, at))
    seen: list[Program] = []
    program, constants = transform(captured.program, captured.constants, Options(), lambda n, p: seen.append(p) if n == "update_tables" else None)  # fmt: skip
    verify(seen[0])
    values = {n: to_numpy(t) for n, t in captured.parameters.items()} | dict(constants)
    names = [t.name for t in program.inputs]
    values |= dict(zip(names, (to_numpy(x), to_numpy(at)), strict=True))
    before = evaluate(captured.program, values)
    tables = {w.tensor.name: w for w in seen[0].weights}
    after = evaluate(seen[0], values)
    states = dict(zip(captured.program.states, before[1:], strict=True))
    np.testing.assert_allclose(after[0], before[0], rtol=1e-5, atol=1e-6)
    for name, found in zip(seen[0].states, after[1:], strict=True):
        table = tables.get(name)
        parts, rows = (name,), [found]
        if table is not None:
            parts = table.parts
            rows = found.reshape(len(parts), *table.tensor.shape[table.table :])
        for part, row in zip(parts, rows, strict=True):
            np.testing.assert_allclose(row, states[part], rtol=1e-5, atol=1e-6)
    assert sorted(state_names(seen[0])) == sorted(captured.program.states)
    return seen[0], states


@pytest.mark.parametrize("how", ["rows", "whole", "before"])
def test_the_loop_carries_the_table(how: str) -> None:
    program, _ = program_of(Remembers(how))
    (loop,) = (s for s in program.body if isinstance(s, Loop))
    assert len(program.states) == 1
    assert any(c.init.shape == (LAYERS, 5, WIDTH) for c in loop.carried)
    assert not loop.stacked


@pytest.mark.parametrize("how", ["rows", "before"])
def test_loops_in_loops_carry_it_too(how: str) -> None:
    program, _ = program_of(Nested(how))
    (loop,) = (s for s in program.body if isinstance(s, Loop))
    assert len(program.states) == 2
    assert not loop.stacked
    assert {c.init.shape for c in loop.carried} == {(1, WIDTH), (3, 2, 5, WIDTH), (2, 6, WIDTH)}
