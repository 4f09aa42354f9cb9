"""Python `while` loops on a tensor's value."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Loop, statements
from tests.frontend.against import check


class Net(nn.Module):
    """f: of the module and its argument."""

    def __init__(self, f: Callable[["Net", Tensor], object]) -> None:
        super().__init__()
        self.f = f
        self.layer = nn.Linear(4, 4)
        with torch.no_grad():
            self.layer.weight.mul_(0.3)

    def step(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))

    def forward(self, x: Tensor) -> object:
        return self.f(self, x)


def halved(_: Net, x: Tensor) -> Tensor:
    while x.abs().max() > 0.1:
        x = x * 0.5
    return x


def converged(model: Net, x: Tensor) -> object:
    change, steps = torch.tensor(9.0), 0
    while change > 1e-2 and steps < 20:
        new = model.step(x)
        change = (new - x).norm()
        x = new
        steps += 1
    return x, change


def is_left(model: Net, x: Tensor) -> Tensor:
    steps = 0
    while steps < 20:
        new = model.step(x)
        if (new - x).norm() < 1e-2:
            x = new
            break
        x = new
        steps += 1
    return x + steps


def is_left_by_another_test(model: Net, x: Tensor) -> Tensor:
    while x.abs().max() > 0.01:
        new = model.step(x)
        if (new - x).norm() < 1e-2:
            break
        x = new
    return x


def returns_by_another_test(model: Net, x: Tensor) -> object:
    steps = 0
    while x.abs().max() > 0.1:
        new = model.step(x)
        if (new - x).norm() < 0.5:
            return new, steps
        x = new
        steps += 1
    return x, -1


def returns(model: Net, x: Tensor) -> object:
    best = None
    while True:
        new = model.step(x)
        best = new if best is None else torch.maximum(best, new)
        if (new - x).norm() < 1e-2:
            return new, best
        x = new


def writes(_: Net, x: Tensor) -> Tensor:
    found, k = torch.zeros(30, 4), 0
    while (x**2).sum() > 0.1:
        found[k] = x[0]
        x = x * 0.6
        k = k + 1
    return found


def conjugate_gradients(_: Net, x: Tensor) -> Tensor:
    a, b = x.T @ x + 2 * torch.eye(4), x[0]
    y, r = torch.zeros_like(b), b
    p, squares = r.clone(), r @ r
    while squares.sqrt() > 1e-4:
        ap = a @ p
        y = y + squares / (p @ ap) * p
        r = r - squares / (p @ ap) * ap
        before, squares = squares, r @ r
        p = r + squares / before * p
    return y


def within_another(_: Net, x: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    for k in range(2):
        y = x[k]
        while y.abs().sum() > 0.5:
            if y.max() > 1:
                y = y * 0.4
            else:
                y = y * 0.7
        found[k] = y
    return found


def adaptive(model: Net, x: Tensor) -> Tensor:
    t, h, steps = torch.tensor(0.0), torch.tensor(0.1), 0
    while t < 1 and steps < 50:
        h = torch.minimum(h, 1 - t)
        first = model.step(x)
        second = model.step(x + h * first)
        error = (h * (second - first) / 2).abs().max()
        if error < 1e-2:
            x = x + h * (first + second) / 2
            t = t + h
        h = h * torch.clamp(0.9 * (1e-2 / (error + 1e-9)).sqrt(), 0.2, 5.0)
        steps += 1
    return x


LOOPS = [
    halved,
    converged,
    is_left,
    is_left_by_another_test,
    returns,
    writes,
    conjugate_gradients,
    within_another,
    adaptive,
]


@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_as_long_as_a_tensor_says(f: Callable[[Net, Tensor], object]) -> None:
    torch.manual_seed(0)
    model, x = Net(f), torch.randn(3, 4)
    for scale in (1.0, 0.01):
        program = check(model, (x * scale,), tolerance=1e-4).program
    assert any(isinstance(s, Loop) and s.predicate is not None for s in statements(program.body))


def grows(_: Net, x: Tensor) -> Tensor:
    found = [x]
    while found[-1].abs().max() > 0.1:
        found.append(found[-1] * 0.5)
    return torch.stack(found)


def shrinks(_: Net, x: Tensor) -> Tensor:
    while x.sum() > 0:
        x = x[1:]
    return x


def begins_with_none(_: Net, x: Tensor) -> object:
    last = None
    while x.norm() > 0.1:
        last = x
        x = x * 0.5
    return x, last


@pytest.mark.parametrize("f", [begins_with_none, grows, shrinks], ids=lambda f: f.__name__)
def test_refused(f: Callable[[Net, Tensor], object]) -> None:
    with pytest.raises(
        CaptureError, match=r"at test_while_loops\.py:.*iterations of this loop depends on data"
    ):
        capture(Net(f), (torch.randn(3, 4),))


def counts(_: Net, x: Tensor) -> object:
    steps, y = 0, x
    while y.abs().max() > 0.1:
        y, steps = y * 0.5, steps + 1
    return y, steps, [x.argmax().item() + 1, x.max().item()], x.topk(2).indices[0].tolist()


@pytest.mark.parametrize("g", [counts, returns_by_another_test])
def test_numbers_that_data_decide_are_numbers_again(g: Callable[[Net, Tensor], object]) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(3, 4), Net(g)
    fast = monotile.compile(model, (x,), target="cpu")
    for scale in (0.1, 1.0, 9.0):
        found, wanted = fast(x * scale), g(model, x * scale)
        torch.testing.assert_close(found, wanted)
        assert [*map(type, tree_leaves(found))] == [*map(type, tree_leaves(wanted))]


class Counting(nn.Module):
    """Updates states in a loop, in a branch and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.mean.mul_(0.9).add_(x, alpha=0.1)
        else:
            self.mean.zero_()
        y, new = x.clone(), torch.zeros_like(self.steps)
        while y.norm() > 1:
            y.mul_(0.5)
            self.steps += 1
            new = new + 1
        self.mean += new
        return y + self.mean


def test_models_with_states() -> None:
    torch.manual_seed(0)
    model, plain = Counting().eval(), Counting().eval()
    fast = monotile.compile(model, (torch.randn(4),), target="cpu")
    for _ in range(4):
        x = 5 * torch.randn(4)
        torch.testing.assert_close(fast(x), plain(x))
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
