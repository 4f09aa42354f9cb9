"""Numbers that tensors have, where PyTorch takes Python's numbers: operands of operators, ends of slices and ranges, comparisons."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import monotile
from monotile.errors import CaptureError, IndexOutOfRangeError
from monotile.frontends.torch.capture import capture
from tests.frontend.test_errors import Call

T = torch.Tensor


def as_eager(f: Callable[..., Any], *calls: tuple[T, ...]) -> None:
    """Compiled with the first call and compared in all of them, types of numbers included."""
    fast = monotile.compile(f, calls[0], target="cpu")
    for call in calls:
        found, wanted = (of(*(x.clone() for x in call)) for of in (fast, f))
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert [*map(type, tree_leaves(found))] == [*map(type, tree_leaves(wanted))]


OPERATORS: dict[str, Callable[[T, Any], Any]] = {
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "in_place": lambda x, v: (F.leaky_relu(x.clone(), v, True), x.clone().addcmul_(x, x, value=v)),
    "elu": lambda x, v: F.elu(x, v),
    "celu": lambda x, v: F.celu(x, v),
    "softplus": lambda x, v: (F.softplus(x, v), F.softplus(x, threshold=v)),
    "hardtanh": lambda x, v: F.hardtanh(x, -v, v),
    "threshold": lambda x, v: F.threshold(x, v, 3.0),
    "shrinks": lambda x, v: (F.hardshrink(x, v), F.softshrink(x, v)),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "addcdiv": lambda x, v: torch.addcdiv(x, x, x + 9, value=v),
    "sub": lambda x, v: (torch.sub(x, x, alpha=v), torch.rsub(x, x, alpha=v)),
    "lerp": lambda x, v: torch.lerp(x, -x, v),
    "addmm": lambda x, v: torch.addmm(x, x, x, beta=v, alpha=v),
    "addr": lambda x, v: torch.addr(x, x[0], x[1], alpha=v),
    "pad": lambda x, v: F.pad(x, (1, 0), value=v),
    "attention": lambda x, v: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=v),
    "clamp": lambda x, v: (x.clamp(-v, v), x.clamp(min=v)),
}


@pytest.mark.parametrize("f", OPERATORS.values(), ids=OPERATORS)
def test_operators(f: Callable[[T, Any], Any]) -> None:
    calls = [(torch.randn(3, 3), torch.tensor(t)) for t in (0.3, 2.0)]
    as_eager(lambda x, t: f(x, t.item()), *calls)


def test_types_stay() -> None:
    as_eager(
        lambda x, t: F.leaky_relu(x.half(), t.item()).sum(), (torch.randn(4), torch.tensor(0.5))
    )


def test_rolls() -> None:
    def f(x: T, t: T) -> object:
        return x.roll(int(t)), torch.roll(x, (int(t), 1), (0, 1)), x.roll(t.item(), -1)

    as_eager(f, *((torch.randn(3, 4), torch.tensor(t)) for t in (2, -1, 5)))


@pytest.mark.parametrize("dim", [0, 1])
def test_top_elements(dim: int) -> None:
    def f(x: T) -> object:
        count = int((x[0] > 0).sum())
        return (*x.topk(count, dim, False), torch.topk(x.sum(), 1).indices + x.topk(k=count).values.mean())  # fmt: skip

    x = torch.tensor([[1, 7, -3.0], [5, 2, 4], [6, 0, 9]])
    as_eager(f, *((x - t,) for t in (0, 2, -4)))


def test_more_top_elements_than_there_are() -> None:
    fast = monotile.compile(lambda x: x.topk(2 * int((x > 0).sum()))[0], (torch.tensor([1.0, -2]),), target="cpu")  # fmt: skip
    with pytest.raises(IndexOutOfRangeError, match="a_check_of_the_model"):
        fast(torch.tensor([1.0, 2]))


def test_integer_arithmetic() -> None:
    def f(t: T) -> object:
        n = int(t)
        return divmod(n, 3), divmod(7, n * n + 2), round(n * 0.5), round(n * 0.777, 1)

    as_eager(f, *((torch.tensor(t),) for t in (7, -7, 3)))


def test_extrema_of_tensors() -> None:
    """Not PyTorch's maximum, which is NaN where one of the two is."""

    def f(x: T) -> object:
        first, last = x[0].item(), x[1].item()
        found = max(x[0], x[1]), min(x[0], x[1], x[2]), max(first, last), min(x)
        return found, max(x, key=lambda v: -v)

    nan = float("nan")
    as_eager(f, *((torch.tensor(x),) for x in ([1.0, 2, 3], [nan, 1, 2], [2.0, nan, -3])))


def test_comparisons_are_numbers() -> None:
    def f(x: T, y: T) -> object:
        if torch.allclose(x, y, atol=0.1):
            x = x + 1
        flag = 3 if torch.is_nonzero(x[0] > 0) else 4
        return x, torch.equal(x, y), x.allclose(y, rtol=0.5), flag

    x = torch.randn(4)
    as_eager(f, (x, x + 1), (x, x), (x, x + 0.05), (-x, x))


def beginning(x: T) -> object:
    i = int(x[0].argmax())
    return x[:, i:], x[1:, : i + 1].mean(1)


def between(x: T) -> object:
    first, last = int(x[0].argmin()), int(x[0].argmax())
    if first > last:
        first, last = last, first
    return torch.cat([x[:, :first], x[:, last:]], 1), x[:, first : last + 1].sum()


@pytest.mark.parametrize("f", [beginning, between])
def test_slices_of_lengths_that_data_decide(f: Callable[[T], object]) -> None:
    torch.manual_seed(0)
    as_eager(f, *((torch.randn(3, 6),) for _ in range(4)))


def test_slices_of_known_lengths() -> None:
    def f(x: T, t: T) -> object:
        n, y = int(t), x.clone()
        y[:, n : n + 1] *= 3
        y[0, n + 1 : n + 2] = x[0, :1]
        return x[:, n : n + 2].softmax(1), x.narrow(1, n, 2), y

    x = torch.randn(3, 6)
    as_eager(f, *((x, torch.tensor(t)) for t in (2, 0, 4)))
    for t in (5, -1):
        with pytest.raises(IndexOutOfRangeError):
            monotile.compile(f, (x, torch.tensor(2)), target="cpu")(x, torch.tensor(t))


def test_assigned_slices_of_any_length() -> None:
    def f(x: T, lengths: T) -> object:
        mask = torch.zeros(x.shape, dtype=torch.bool)
        for k, n in enumerate(lengths.tolist()):
            mask[k, n:] = True
        x[1:, -lengths[0].item() :] = x[1:, :1]
        return x.masked_fill_(mask, -1.0)

    rows = [(torch.randn(3, 6), torch.tensor(n)) for n in ([2, 5, 0], [6, 1, 3])]
    as_eager(f, *rows)


def test_writes_into_slices_are_refused() -> None:
    """They are copies here."""

    def f(x: T) -> T:
        i, y = int(x[0].argmax()), x.clone()
        y[:, i : i + 1].mul_(2)
        return y

    with pytest.raises(CaptureError, match="writes into the result of indexing"):
        capture(Call(f), (torch.randn(3, 6),))


def repeats(x: T, t: T) -> object:
    for _ in range(int(t)):
        x = torch.tanh(x)
    return x


def adds(x: T, t: T) -> object:
    found = x[:, 0]
    for k in range(1, int(t) + 1):
        found = found + x[:, k] * k + x[:, k - 1 : k].sum(1)
    return found


def descends(x: T, t: T) -> object:
    k = -1
    for k in range(int(t), 0, -1):
        if x.sum() > 3:
            x = x - 1
            continue
        x = x * 0.5 + k
    return x, k


def leaves(x: T, t: T) -> object:
    steps = 0
    for _ in range(int(t)):
        x, steps = x * 0.5, steps + 1
        if x.abs().max() < 0.3:
            break
    return x, steps


def returns(x: T, t: T) -> object:
    for k in range(int(t)):
        x = x * 0.5
        if x.abs().max() < 0.3:
            return x + k
    return x


def nested(x: T, t: T) -> object:
    for k in range(2):
        for j in range(t.item()):
            x[k] = x[k] * 0.9 + j
    return x


@pytest.mark.parametrize("f", [repeats, adds, descends, leaves, returns, nested])
def test_ranges(f: Callable[[T, T], object]) -> None:
    torch.manual_seed(0)
    as_eager(f, *((torch.randn(3, 6), torch.tensor(t)) for t in (2, 4, 0, -2, 5)))
