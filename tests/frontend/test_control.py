"""Control flow: branches, loops with a predicate, scans."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from monotile.errors import CaptureError, UnsupportedOperatorError
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Branch, Loop
from tests.frontend.against import check


class Cond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def positive(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.linear(x), x.sum() + torch.tensor(2.0)

        def negative(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.clone(), x.mean()

        return torch.cond(x.sum() > 0, positive, negative, (x,))


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign: int) -> None:
    captured = check(Cond(), (sign * torch.rand(2, 3),))
    assert any(isinstance(s, Branch) for s in captured.program.body)


class While(nn.Module):
    def forward(self, x: torch.Tensor, limit: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def go(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return (i < limit) & (x.abs().max() < 100)

        def step(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return i + 1, x * 2 + i

        return while_loop(go, step, (torch.tensor(0), x))


@pytest.mark.parametrize("limit", [0, 3, 50])
def test_while_loop(limit: int) -> None:
    captured = check(While(), (torch.ones(3), torch.tensor(limit)))
    (loop,) = [s for s in captured.program.body if isinstance(s, Loop)]
    assert loop.predicate is not None


def test_scan_and_map() -> None:
    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            def step(c: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
                new = torch.tanh(self.cell(c) + y)
                return new, new * 2

            last, all_of_them = scan(step, torch.zeros(3), x)
            return last, all_of_them, torch_map(lambda row: row.softmax(-1), x)

    captured = check(Scan(), (torch.randn(5, 3),))
    loops = [s for s in captured.program.body if isinstance(s, Loop)]
    assert [loop.axis.extent for loop in loops] == [5, 5]
    assert all(loop.predicate is None for loop in loops)


def test_unsupported_operators_inside_are_reported_with_the_others() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(
                x.sum() > 0, lambda x: torch.special.airy_ai(x)[0] + 1, lambda x: x[0] * 2, (x,)
            )
            return y + torch.geqrf(x).a

    with pytest.raises(UnsupportedOperatorError, match="2 operators"):
        capture(Model(), (torch.randn(3, 3),))


def test_why_a_loop_cannot_be_traced() -> None:
    class Counts(nn.Module):
        steps = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def step(x: torch.Tensor) -> tuple[torch.Tensor]:
                self.steps += 1
                return (x * 2,)

            return while_loop(lambda x: x.sum() < 9, step, (x,))[0]

    with pytest.raises(CaptureError, match=r"(?i)mutat"):
        capture(Counts(), (torch.ones(3),))
