"""Arguments and parameters with their channels last: read as they lie, and copied only where they lie otherwise."""

import importlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import monotile
from monotile.errors import InputError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.frontends.torch.orders import in_memory_order, order_of
from monotile.runtime import arguments
from monotile.runtime.module import CompiledModule
from monotile.targets.detect import detect_target

LAST = torch.channels_last


def network() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(8 * 8 * 6, 5)
    )  # fmt: skip
    return made.eval().requires_grad_(False)


def images(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 8, 10, 8, generator=generator).to(memory_format=LAST)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, CompiledModule]:
    """On the CPU, as a GPU's kernel reads it."""
    compiler = importlib.import_module("monotile.compile")
    cpu = detect_target("cpu", monotile.Options())
    has = msgspec.structs.replace(cpu.has, any_order=True)
    anyhow = msgspec.structs.replace(cpu, has=has)
    monkeypatch.setattr(compiler, "detect_target", lambda *_: anyhow)
    convert: Any = network().to
    model: nn.Module = convert(memory_format=LAST)
    options = monotile.Options(cache=False)
    return model, monotile.compile(model, (images(),), target="cpu", options=options)


def close(x: torch.Tensor, y: torch.Tensor) -> None:
    """Sums of terms of both signs err by what the terms are, not by what is left of them."""
    torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5 * max(1.0, float(y.abs().max())))


def test_nothing_is_copied(
    fast: tuple[nn.Module, CompiledModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, compiled = fast

    def refuse(_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("copied")

    monkeypatch.setattr(arguments, "kernel_readable", refuse)
    x = images(2)
    close(compiled(x), model(x))
    held = {p.data_ptr() for p in model.parameters()}
    assert {t.data_ptr() for t in compiled._weights.tensors.values()} == held  # pyright: ignore[reportPrivateUsage]


def test_other_orders_are_copied(fast: tuple[nn.Module, CompiledModule]) -> None:
    model, compiled = fast
    columns_first = images(3).transpose(2, 3).contiguous().transpose(2, 3)
    for x in (images(3).contiguous(), columns_first, images(3).expand(2, 2, 8, 10, 8)[1]):
        close(compiled(x), model(x))
    with pytest.raises(InputError, match=r"expected \[2, 8, 10, 8\]"):
        compiled(images().permute(0, 2, 3, 1))


def test_a_change_in_place_is_seen(fast: tuple[nn.Module, CompiledModule]) -> None:
    model, compiled = fast
    for p in model.parameters():
        p.mul_(1.5)
    close(compiled(images()), model(images()))


def test_other_parameters(fast: tuple[nn.Module, CompiledModule]) -> None:
    _, compiled = fast
    other = network()
    for p in other.parameters():
        p.add_(torch.randn_like(p))
    compiled.load_parameters(other.state_dict())
    close(compiled(images()), other(images()))


def test_saved_and_loaded(fast: tuple[nn.Module, CompiledModule], tmp_path: Path) -> None:
    model, compiled = fast
    compiled.save(tmp_path / "model.monotile")
    again = monotile.load(tmp_path / "model.monotile")
    close(again(images()), model(images()))


def test_orders() -> None:
    x = torch.empty(2, 3, 4, 5)
    assert order_of(x) is None
    assert order_of(x.to(memory_format=LAST)) == (0, 2, 3, 1)
    assert order_of(x.permute(3, 0, 1, 2)) == (1, 2, 3, 0)
    assert order_of(x[:, :, ::2]) is None
    assert order_of(x[:1].expand(4, 3, 4, 5)) is None
    assert order_of(torch.empty(16, 8, 1, 1).to(memory_format=LAST)) is None  # the same in memory
    assert order_of(torch.empty(3, 0, 2)) is None


def test_what_is_updated_in_place_stays_as_it_is() -> None:
    class Counting(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2, 8, 10, 8).to(memory_format=LAST))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(x)
            return self.seen * 2

    exported = export(Counting().eval(), (images(),))
    captured = capture(exported)
    _, orders = in_memory_order(captured, exported)
    assert list(orders.values()) == [(0, 2, 3, 1)]
    assert "seen" not in orders
