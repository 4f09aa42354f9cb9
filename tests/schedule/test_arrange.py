"""Parameters in the order in which a GPU's kernel reads them best: which, and that the Program means the same."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.evaluate import evaluate
from monotile.ir.printer import show
from monotile.ir.program import Program
from monotile.pipeline import for_target, transform
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.transform.layout.parameters import arrange

TARGET = cuda_target("sm_90a")


class Columns(nn.Module):
    """x @ w, as GPT-2 has it, and its layers repeat."""

    def __init__(self, layers: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        made = (torch.randn(width, width, dtype=dtype) / width**0.5 for _ in range(layers))
        self.weights = nn.ParameterList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for w in self.weights:
            x = torch.relu(x @ w) + x
        return x


class Tied(nn.Module):
    """A table that is looked up along its rows, and multiplied with along its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(40, 24).half())

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.table[ids] + x @ self.table


class Updated(nn.Module):
    """What a call updates stays where it is."""

    held: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.randn(32, 48).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.held
        self.held.mul_(0.5)
        return y


class Experts(nn.Module):
    """A matrix for each expert in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 32, 48).half() / 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.expand(4, -1, -1), self.up).sum(0)


def image_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, groups=32),
        nn.Conv2d(32, 16, 1),
    )


def of(model: nn.Module, *args: torch.Tensor) -> tuple[Program, Program, dict[str, Any], Any]:
    """The Program before and after, the orders, and what computes the results of each."""
    model = model.eval().requires_grad_(False)
    captured = capture(model, args)
    program, constants = transform(captured.program, captured.constants, Options(), lambda *_: None)
    after, orders = arrange(program, TARGET, captured.parameters.keys() - {*program.states})
    given = captured.parameters | dict(zip((t.name for t in program.inputs), args, strict=True))

    def run(p: Program, orders: dict[str, tuple[int, ...]]) -> list[np.ndarray]:
        values = {
            n: to_numpy(t.detach().permute(orders.get(n, (*range(t.dim()),))))
            for n, t in given.items()
        }
        return [*evaluate(p, values | constants)]

    return program, after, orders, run


def test_layers_that_are_rolled_have_one_order() -> None:
    _, after, orders, _ = of(Columns(3, 48, torch.float16), torch.randn(5, 48).half())
    assert orders == {f"weights.{i}": (1, 0) for i in range(3)}
    assert [w.table for w in after.weights] == [1]


@pytest.mark.parametrize(
    ("model", "args", "moved"),
    [
        (Columns(3, 48, torch.float16), (torch.randn(5, 48).half(),), 3),
        (Columns(2, 48, torch.bfloat16), (torch.randn(1, 48).bfloat16(),), 2),
        (Columns(2, 48, torch.float32), (torch.randn(5, 48),), 0),
        (nn.Linear(48, 32).half(), (torch.randn(5, 48).half(),), 0),
        (Tied(), (torch.tensor([3, 1]), torch.randn(2, 40).half()), 0),
        (Updated(), (torch.randn(4, 32).half(),), 0),
        (Experts(), (torch.randn(3, 32).half(),), 1),
        (image_network().half(), (torch.randn(1, 16, 8, 8).half(),), 2),
        (image_network(), (torch.randn(1, 16, 8, 8),), 2),
    ],
    ids=["rolled", "one row", "float32", "linear", "tied", "updated", "experts", "images", "images, float32"],
)  # fmt: skip
def test_the_program_means_the_same(
    model: nn.Module, args: tuple[torch.Tensor, ...], moved: int
) -> None:
    before, after, orders, run = of(model, *args)
    assert len(orders) == moved
    for x, y in zip(run(before, {}), run(after, orders), strict=True):
        np.testing.assert_array_equal(x, y)
    if not moved:
        assert after is before


def test_convolutions_copy_their_weights_no_more() -> None:
    before, after, orders, _ = of(image_network().half(), torch.randn(1, 16, 8, 8).half())
    assert set(orders.values()) == {(0, 2, 3, 1), (1, 2, 3, 0)}
    counts = [len(for_target(p, TARGET)[0].body) for p in (before, after)]
    assert counts[0] - counts[1] == 2


def test_on_the_cpu_weights_stay_and_may_be_copied() -> None:
    captured = capture(Columns(3, 48, torch.float16), (torch.randn(5, 48).half(),))
    movable = captured.parameters.keys() - {"weights.1"}
    after, orders = arrange(captured.program, cpu_target(workers=2), movable)
    assert not orders
    assert after.body == captured.program.body
    assert [w.copied for w in after.weights] == ["weights.1" not in w.parts for w in after.weights]
    assert show(after).count("may be copied") == 2
