"""Numbers that Python's functions make of tensors that a network computes."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import monotile
from monotile.compile import compile_loop
from monotile.errors import CaptureError, ScheduleError
from monotile.frontends.torch.capture import capture
from monotile.transform.iterate import Iterate
from tests.frontend.test_errors import Call

T = torch.Tensor


def returned(x: T) -> object:
    return float(x.sum()), int(x.argmax()), [x.mean().item(), bool(x[0] > 0)]


def arithmetic(x: T) -> object:
    most, count = float(x.abs().max()), int((x > 0).sum())
    scale = max(most, 1e-6)
    return (
        x / scale,
        x * math.sqrt(most) + math.log(most + 1) + math.floor(most),
        x * count + count // 2,
        min(count, 2),
        max(count * 1.0, most),
        x[int(x.argmax())],
        x.clamp(-x.abs().mean().item(), 1.0),
        torch.add(x, x, alpha=float(x[0])),
        x.new_tensor([most, 2.0]),
        1 if isinstance(count, int) and not isinstance(most, int) else 2,
    )


def until(x: T) -> object:
    error, steps = float("inf"), 0
    while error > 1e-2 and steps < 40:
        y = x * 0.5
        error, x, steps = float((y - x).norm()), y, steps + 1
    return x, error, steps


def the_best(x: T) -> object:
    best, at = -math.inf, -1
    for k in range(4):
        if x[k].item() > best:
            best, at = x[k].item(), k
    return best, at


def sides(x: T) -> T:
    norm = float(x.norm())
    if norm < 1:
        return x
    return x / norm if int(x.argmax()) == 1 else x - norm


@pytest.mark.parametrize("f", [returned, arithmetic, until, the_best, sides])
def test_numbers(f: Callable[[T], object]) -> None:
    torch.manual_seed(0)
    fast = monotile.compile(f, (torch.randn(4),), target="cpu")
    for scale in (1.0, 0.1, 30.0):
        x = torch.randn(4) * scale
        found, wanted = fast(x), f(x)
        torch.testing.assert_close(found, wanted)
        assert [*map(type, tree_leaves(found))] == [*map(type, tree_leaves(wanted))]


def test_types_of_results_with_numbers() -> None:
    """A number promotes no tensor of its kind, with dimensions or without."""

    def f(x: T, n: T) -> list[T]:
        v, k = x[0].item(), n[0].item()
        found = [x, x.sum(), x.half(), x.half().sum(), n, n.sum(), n.int().sum(dtype=torch.int32), n > 2, n.to(torch.uint8)]  # fmt: skip
        scaled = [y for z in found for y in (z * v, v / z, z + k, torch.where(n[0] > 1, z, v))]
        return [*scaled, found[5] // (k + 1), 2 - n * k]

    x, n = torch.rand(4) + 1, torch.randint(1, 5, (4,))
    found = monotile.compile(f, (x, n), target="cpu")(x, n)
    for y, wanted in zip(found, f(x, n), strict=True):
        torch.testing.assert_close(y, wanted)


@pytest.mark.parametrize("asks", [lambda n: {1: 2}.get(n, 3), lambda n: n in {1}, lambda n: f"{n}"])
def test_numbers_are_no_keys_and_have_no_text(asks: Callable[[int], object]) -> None:
    def f(x: T) -> object:
        return F.relu(x), asks(int(x.argmax()))

    with pytest.raises(CaptureError, match=r"test_read_numbers\.py:.*a number that a call's data decide is a"):  # fmt: skip
        capture(Call(f), (torch.randn(4),))


def test_ranges_that_begin_at_a_tensor() -> None:
    """As positions behind what a cache holds."""

    def f(x: T, at: T) -> tuple[T, T]:
        places = torch.arange(at, at + x.shape[0], dtype=torch.int64)
        return x + places[:, None], torch.arange(at, at + 1)

    x, small = torch.randn(3, 4), torch.tensor(2, dtype=torch.int32)
    for at in (torch.tensor(5), small):
        fast = monotile.compile(f, (x, at), target="cpu")
        for t in (at, at + 7, at - 4):
            torch.testing.assert_close(fast(x, t), f(x, t))


def test_loops_of_models_for_certain_numbers() -> None:
    def step(n: T, x: T, goes_on: T) -> tuple[T, T, T]:
        del goes_on
        x = torch.stack([x] * int(n)).sum(0)
        return n + 1, x, n < 4

    given = (torch.tensor(2), torch.randn(3), torch.tensor(True))
    with pytest.raises(ScheduleError, match="each iteration may have others"):
        compile_loop(step, given, Iterate((0, 1, 2), predicate=2, bound=9), target="cpu")
