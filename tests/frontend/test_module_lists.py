"""Modules that a tensor selects from a list."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture

T = torch.Tensor


class Routed(nn.Module):
    """The modules that a router finds best, one after the other."""

    def __init__(self, experts: int, most: int) -> None:
        super().__init__()
        self.router, self.most = nn.Linear(6, experts), most
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 4 + k), nn.GELU(), nn.Linear(4 + k, 6))
            for k in range(experts)
        )

    def forward(self, x: T) -> T:
        weights, chosen = self.router(x.mean(0)).softmax(-1).topk(self.most)
        out = x.clone()
        for k, expert in enumerate([self.experts[i] for i in chosen]):
            out += expert(x) * weights[k]
        return out


def test_experts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Routed(4, 2), Routed(3, 1)).eval().requires_grad_(False)
    fast = monotile.compile(model, (torch.randn(5, 6),), target="cpu")
    seen: set[int] = set()
    for _ in range(20):
        x = torch.randn(5, 6)
        seen.add(int(model[0].router(x.mean(0)).argmax()))
        torch.testing.assert_close(fast(x), model(x))
    assert len(seen) > 2


class Counted(nn.Module):
    """Has a state, changes an argument in place, and gives a dict."""

    count: T

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: T, by: T) -> dict[str, T]:
        self.count += 1
        x.mul_(self.factor)
        if by.sum() > 0:
            z = x + by
        else:
            z = x * 1.5
        return {"x": z, "count": self.count * self.factor}


class Indexed(nn.Module):
    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(modules)

    def forward(self, x: T, k: T) -> Any:
        y = x.exp()
        found = self.ways[k.long()](y, by=x)
        return found, y


def test_states_and_updates() -> None:
    """Of the chosen module alone; an index may count from the end. One of floats is no number that could be told."""
    model = Indexed(Counted(2.0), Counted(3.0), Counted(4.0)).eval()
    eager, x = copy.deepcopy(model), torch.randn(3)
    fast = monotile.compile(model, (x, torch.tensor(0.0)), target="cpu")
    for k in (1.0, 2.0, 1.0, -1.0, -3.0, 0.0):
        for given in (x, -x):
            found, want = fast(given, torch.tensor(k)), eager(given, torch.tensor(k))
            torch.testing.assert_close(found, want)
    assert [int(m.count) for m in model.ways] == [int(m.count) for m in eager.ways]


class Way(nn.Module):
    def __init__(self, run: Any, size: int = 3) -> None:
        super().__init__()
        self.run, self.size = run, size

    def forward(self, x: T, by: T) -> T:
        return self.run(self, x, by)


def _assigns(way: Way, x: T, _: T) -> T:
    way.last = x * 2
    return x


def _ends(_: Way, x: T, by: T) -> T:
    seen = []
    if by.sum() > 0:
        seen.append(x)
    return x + len(seen)


def test_the_reason_of_a_choice_within() -> None:
    """Why it cannot be a branch, and not that it can be none here."""

    def run(_: Way, x: T, by: T) -> T:
        if by.sum() > 0:
            x = x + by
        return x.mul_(2)

    with pytest.raises(
        CaptureError,
        match=r"changes a tensor in place that may share memory with the result of a branch",
    ):
        capture(Indexed(Way(run), Way(run)).eval(), (torch.randn(3), torch.tensor(0.0)))


def test_one_changes_what_another_may_give() -> None:
    """Only one of them runs."""

    def run(_: Way, x: T, by: T) -> T:
        x.mul_(2)
        if by.sum() > 0:
            x = x + by
        return x

    model = Indexed(Way(run), Way(run)).eval()
    for start in (0.0, 1.0):
        fast = monotile.compile(model, (torch.randn(3), torch.tensor(start)), target="cpu")
        for given in (torch.ones(3), -torch.ones(3)):
            k = torch.tensor(1 - start)
            torch.testing.assert_close(fast(given, k), model(given, k))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (_assigns, r"last is assigned in a module that a tensor selects"),
        (_ends, r"`if` on a tensor in a module that a tensor selects"),
        (lambda w, x, _: x[: w.size], r"different types, shapes or Python values"),
    ],
)
def test_what_is_refused(run: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=rf"{words}.*compute all modules"):
        capture(Indexed(Way(run, 2), Way(run, 3)).eval(), (torch.randn(3), torch.tensor(0.0)))


def test_only_calls() -> None:
    class Reads(Indexed):
        def forward(self, x: T, k: T) -> T:
            return self.ways[k.long()].factor * x

    with pytest.raises(CaptureError, match=r"test_module_lists.*\.factor is read.*only be called"):
        capture(Reads(Counted(2.0), Counted(3.0)).eval(), (torch.randn(3), torch.tensor(0.0)))
