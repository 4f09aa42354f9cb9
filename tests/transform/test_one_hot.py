"""Weights of which each group has a few values, at stored positions: few rows gather, and nothing else changes."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Compute, Program, statements
from monotile.pipeline import transform
from monotile.runtime.tensors import from_numpy


def sums(program: Program) -> list[int]:
    """The terms of each sum."""
    return [
        s.reduce[0].extent for s in statements(program.body) if isinstance(s, Compute) and s.reduce
    ]


def lowered(model: nn.Module, x: Tensor) -> tuple[Program, Tensor]:
    """After the passes for any target, with its result by the evaluator."""
    found = capture(model.eval(), (x,))
    program, constants = transform(found.program, found.constants, Options())
    values = {n: p.detach().numpy() for n, p in found.parameters.items()} | dict(constants)
    values[program.inputs[0].name] = x.numpy()
    with np.errstate(all="ignore"):
        (result,) = evaluate(program, values)
    return program, from_numpy(result)


@pytest.mark.parametrize("name", ["2:4", "3:32", "5:16"])
@pytest.mark.parametrize("rows", [1, 8, 9])
def test_few_rows_gather(name: str, rows: int) -> None:
    torch.manual_seed(0)
    kept, size = map(int, name.split(":"))
    model = monotile.pack(nn.Sequential(nn.Linear(128, 48)), name).requires_grad_(False)
    program, found = lowered(model, x := torch.randn(rows, 128))
    gathers = 128 // size * kept in sums(program)
    assert gathers == (rows <= 8)
    torch.testing.assert_close(found, model(x))


@pytest.mark.parametrize(("vector", "gathers"), [(16, False), (32, True), (48, True)])
def test_many_rows_gather_for_vectors(vector: int, gathers: bool) -> None:
    """Where enough columns share their positions."""
    torch.manual_seed(0)
    model = monotile.pack(nn.Sequential(nn.Linear(128, 96)), f"4:16x{vector}")
    program, found = lowered(model.requires_grad_(False), x := torch.randn(24, 128))
    assert (32 in sums(program)) == gathers
    torch.testing.assert_close(found, model(x))


class Own(nn.Module):
    """The same by own code. A position that is none of the group's adds nothing."""

    def __init__(self, *, signed: bool) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.values = nn.Buffer(torch.randn(24, 4, 2, generator=g))
        at = torch.randint(-1 if signed else 0, 12, (24, 4, 2), generator=g)
        self.at = nn.Buffer(at.to(torch.int8 if signed else torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        hot = self.at[..., None] == torch.arange(8, dtype=self.at.dtype)
        return x @ (self.values[..., None] * hot).sum(2).flatten(1).T


@pytest.mark.parametrize("signed", [False, True])
def test_own_code(signed: bool) -> None:
    model = Own(signed=signed)
    program, found = lowered(model, x := torch.randn(2, 32))
    torch.testing.assert_close(found, model(x))
    assert sums(program) == [8]
    fast = monotile.compile(model, (x,), target="cpu")
    torch.testing.assert_close(fast(x), model(x))
