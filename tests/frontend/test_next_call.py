"""Python state that forward changes: refused where the next call computes otherwise, and of no effect where it does not."""

import re
from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture

T = torch.Tensor
SIZES = (None, ({0: Dim("n", min=2, max=8)},))


class Count:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.calls = 0


class Keeping(nn.Module):
    """State of all kinds, and two ways to use it."""

    def __init__(self, use: "Callable[[Keeping, T], object]") -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(4, 4), use
        self.register_buffer("seen", torch.zeros(4))
        self.step, self.scale, self.count = 0, 1.0, Count()
        self.last: T | None = None
        self.table: T | None = None
        self.noise: T | None = None
        self.history: list[T] = []
        self.recent: deque[T] = deque(maxlen=2)
        self.named: dict[str, T] = {}

    def forward(self, x: T) -> object:
        return self.use(self, x)


def stepped(m: Keeping, x: T) -> T:
    m.step += 1
    return m.layer(x) * m.step


def returned(m: Keeping, x: T) -> tuple[T, int]:
    m.count.calls += 1
    return m.layer(x), m.count.calls


def filled(m: Keeping, x: T) -> T:
    m.scale = max(0.5, m.scale * 0.9)
    return m.layer(x) + torch.full((4,), m.scale)


def streamed(m: Keeping, x: T) -> T:
    last = torch.zeros_like(x) if m.last is None else m.last
    m.last = torch.tanh(m.layer(x) + last)
    return m.last


def averaged(m: Keeping, x: T) -> T:
    m.history.append(m.layer(x))
    return torch.stack(m.history).mean(0)


def windowed(m: Keeping, x: T) -> T:
    m.recent.append(x.mean(0))
    return m.layer(x) + sum(m.recent)


def memoised(m: Keeping, x: T) -> T:
    if "key" not in m.named:
        m.named["key"] = m.layer(x)
    return x * m.named["key"]


def drawn(m: Keeping, x: T) -> T:
    if m.noise is None:
        m.noise = torch.randn(4)
    return m.layer(x) + m.noise


def initialised(m: Keeping, x: T) -> T:
    if not m.step:
        m.seen.copy_(x.mean(0))
        m.step = 1
    return m.layer(x) - m.seen


def branched(m: Keeping, x: T) -> T:
    m.step += 1
    y = m.layer(x) if x.sum() > 0 else x.cumsum(0)
    return y + m.step


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("use", "changes", "once"),
    [
        (stepped, "step from 0 to 1", False),
        (returned, "count.calls from 0 to 1", False),
        (filled, "scale from 1.0 to 0.9", False),
        (averaged, "history from [] to [float32[4, 4]]", False),
        (windowed, "recent from [] to [float32[4]]", False),
        (memoised, "named.key from nothing to float32[4, 4]", True),
        (drawn, "noise from None to float32[4]", True),
        (initialised, "step from 0 to 1", True),
        (branched, "step from 0 to 1", False),
    ],
)
def test_what_the_next_call_reads(
    use: Callable[[Keeping, T], object], changes: str, once: bool, sizes: object
) -> None:
    """once: only the first call differs."""
    model = Keeping(use).eval()
    with pytest.raises(CaptureError, match=re.escape(changes)) as raised:
        capture(model, (torch.randn(4, 4),), dynamic_shapes=sizes)
    assert "its next call computes otherwise" in str(raised.value)
    assert ("call the model once before" in str(raised.value)) == once
    assert (model.step, model.scale, model.count.calls) == (0, 1.0, 0)
    assert not any((model.history, model.recent, model.named))
    assert model.last is model.noise is None


def test_the_line_is_named() -> None:
    with pytest.raises(
        CaptureError, match=r"at test_next_call.py:\d+, in forward: return self.use"
    ):
        capture(Keeping(stepped).eval(), (torch.randn(4, 4),))


def test_a_state_after_a_call_is_updated() -> None:
    model, same = Keeping(streamed).eval(), Keeping(streamed).eval()
    same.load_state_dict(model.state_dict())
    x = torch.randn(2, 4)
    with pytest.raises(CaptureError, match=r"last from None to float32\[2, 4\].*once before"):
        capture(model, (x,))
    with torch.no_grad():
        model(x), same(x)  # pyright: ignore[reportUnusedExpression]
        compiled = monotile.compile(model, (x,), target="cpu")
        for _ in range(3):
            x = torch.randn(2, 4)
            torch.testing.assert_close(compiled(x), same(x))


def bound(m: Keeping, x: T) -> T:
    """Keeps a parameter under another name."""
    m.last = m.layer.weight if m.last is None else m.last
    return x @ m.last


def counted(m: Keeping, x: T) -> T:
    m.step += 1
    m.count.calls += 1
    assert m.step >= 0
    return m.layer(x) if m.step % 100 else m.layer(x) * 1


def shown(m: Keeping, x: T) -> T:
    m.last = m.layer(x).softmax(-1)
    m.history.append(m.last)
    m.recent.append(x)
    return m.history[-1] * 2


def rotated(m: Keeping, x: T) -> T:
    n = x.shape[0]
    if m.table is None or n > m.step:
        m.step = n
        angles = torch.outer(torch.arange(n, dtype=x.dtype), m.layer.weight[0])
        m.table = torch.cat([angles, angles.new_zeros(2, 4)]).cos()
    return m.layer(x) * m.table[:n]


def masked(m: Keeping, x: T) -> T:
    if m.table is None:
        mask = torch.ones_like(x).triu(1)
        m.register_buffer("mask", mask, persistent=False)
        m.table = mask.to(x.dtype)
        return m.layer(x) @ mask.mT
    return m.layer(x) @ m.table[: x.shape[0], :4].mT


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("use", [bound, counted, shown, rotated, masked])
def test_what_makes_no_difference(use: Callable[[Keeping, T], T], sizes: object) -> None:
    model, same = Keeping(use).eval(), Keeping(use).eval()
    same.load_state_dict(model.state_dict())
    compiled = monotile.compile(model, (torch.randn(4, 4),), target="cpu", dynamic_shapes=sizes)
    for _ in range(3):
        x = torch.randn(4, 4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), same(x))


def test_a_model_that_changes_nothing_is_traced_once() -> None:
    calls = 0

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.zeros(3)

        def forward(self, x: T) -> T:
            nonlocal calls
            calls += 1
            self.hidden = self.hidden + x
            return self.hidden * 2

    capture(Plain().eval(), (torch.randn(3),))
    assert calls == 1
