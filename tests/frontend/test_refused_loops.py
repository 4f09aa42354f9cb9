"""Python loops over a symbolic size that are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture
from tests.frontend.loop_networks import IN, WIDTH, Recurrent, sequence


class Over(Recurrent):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Any:
        return self.f(self, x)


def grows(_: Recurrent, x: Tensor) -> Any:
    h = x[:, :1]
    for t in range(x.shape[1]):
        h = torch.cat([h, x[:, t : t + 1]], 1)
    return h


def widens(_: Recurrent, x: Tensor) -> Any:
    h = torch.zeros(1, IN)
    for t in range(1, x.shape[1]):
        h = h + x[:, t]
    return h


def is_left(model: Recurrent, x: Tensor) -> Any:
    h = torch.zeros(2, WIDTH)
    for t in range(x.shape[1]):
        h = model.step(x[:, t], h)
        if model.training:
            break
    return h


def reads_before(_: Recurrent, x: Tensor) -> Any:
    outs = [x[:, 0]]
    for t in range(x.shape[1]):
        outs.append(torch.stack(outs).sum(0) + x[:, t])
    return torch.stack(outs)


def appends_sometimes(_: Recurrent, x: Tensor) -> Any:
    outs = []
    for t in range(x.shape[1]):
        if t % 2 == 0:
            outs.append(x[:, t])
    return torch.stack(outs)


def slices(_: Recurrent, x: Tensor) -> Any:
    h = torch.zeros(2, IN)
    for t in range(x.shape[1]):
        h = h + x[:, : t + 1].sum(1)
    return h


def sums(_: Recurrent, x: Tensor) -> Any:
    return sum(x.unbind(1))


def gives(_: Recurrent, x: Tensor) -> Any:
    return x.unbind(1)


def hides(_: Recurrent, x: Tensor) -> Any:
    def made() -> Callable[[Tensor], None]:
        seen: list[Tensor] = []

        def add(row: Tensor) -> None:
            seen.append(row)

        return add

    add = made()
    for t in range(x.shape[1]):
        add(x[:, t])
    return x


def lists_one(_: Recurrent, x: Tensor) -> Any:
    h, outs = torch.zeros(2, IN), []
    for t in range(x.shape[1]):
        h += x[:, t]
        outs.append(h)
    return torch.stack(outs)


def names_twice(_: Recurrent, x: Tensor) -> Any:
    h = before = torch.zeros(2, IN)
    for t in range(x.shape[1]):
        h += x[:, t]
        h = h * 2
        before = h
    return h, before


def begins_with_another(_: Recurrent, x: Tensor) -> Any:
    h = first = torch.zeros(2, IN)
    for t in range(x.shape[1]):
        h += x[:, t]
        h = h * 2
    return h, first


def writes_into_slices(_: Recurrent, x: Tensor) -> Any:
    y = x.clone()
    for t in range(x.shape[1]):
        y[:, t : t + 1].mul_(2)
    return y


def fills(outs: list[Tensor], x: Tensor) -> None:
    for t in range(x.shape[1]):
        outs.append(x[:, t])


def has_filled(_: Recurrent, x: Tensor) -> Any:
    outs: list[Tensor] = []
    fills(outs, x)
    return torch.stack(outs) / len(outs)


def notes(_: Recurrent, x: Tensor) -> Any:
    found: dict[int, Tensor] = {}
    for t in range(x.shape[1]):
        found[len(found)] = x[:, t]
    return sum(found.values())


def takes_items(_: Recurrent, x: Tensor) -> Any:
    h, factors = torch.zeros(2, IN), iter([0.5**k for k in range(8)])
    for t in range(x.shape[1]):
        h = h + x[:, t] * next(factors)
    return h


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (grows, r"in grows: for t in range\(x.shape\[1\]\).* h is float32\[2, 2, 3\] before an iteration and float32\[2, 3, 3\] after it: begin with a tensor"),
        (widens, r"h is float32\[1, 3\] before an iteration of the loop, which may have no iterations, and float32\[2, 3\] after it"),
        (is_left, "left by a break or return"),
        (reads_before, r"in reads_before: outs.append\(.* not supported: in that loop it may only be appended to"),
        (appends_sometimes, r"cannot be a branch, at .*: if t % 2 == 0"),
        (slices, r"in slices: .* the ends of a slice depend on the index of a loop"),
        (writes_into_slices, r"writes into the result of indexing by a tensor, .*: write x.k. = value"),
        (sums, r"in sums: .* a size of dynamic_shapes is used as a number"),
        (gives, "return torch.stack of it"),
        (lists_one, "updates in place has another name, or is in a list, .*: give these a clone"),
        (names_twice, "updates in place has another name"),
        (begins_with_another, "in place that it begins with, .*: begin with a clone"),
        (has_filled, "in fills: .* appends to a list that is not the function's own"),
        (notes, "an iteration adds the entry .1. of a dict, and the next would add another"),
        (takes_items, "it reads an object that holds an iterator"),
        (hides, "appends to a list that is not the function's own"),
    ],
)  # fmt: skip
def test_refused(f: Callable[..., Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(Over(f), sequence(4), dynamic_shapes=({1: Dim("length", max=7)},))
