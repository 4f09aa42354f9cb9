"""Parameters that are moved to the order that the kernel reads: the model's own, as `module.to(memory_format=...)` moves them."""

import importlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import monotile
from monotile import pipeline
from monotile.passes.programs import ProgramState, arrange_parameters
from monotile.runtime.arrange import compose_orders, move
from monotile.targets.cuda.target import cuda_target
from monotile.targets.detect import detect_target

OPTIONS = monotile.Options(cache=False, arrange_parameters=True)


class Columns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = (torch.randn(48, 48).bfloat16() / 7 for _ in range(3))
        self.weights = nn.ParameterList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for w in self.weights:
            x = torch.relu(x @ w) + x
        return x


@pytest.fixture(autouse=True)
def as_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = importlib.import_module("monotile.compile")
    cpu = detect_target("cpu", monotile.Options())
    has = msgspec.structs.replace(cpu.has, any_order=True)
    anyhow = msgspec.structs.replace(cpu, has=has)
    monkeypatch.setattr(compiler, "detect_target", lambda *_: anyhow)
    passes = tuple(replace(p, run=for_gpu, where=p.where[:1]) if p.name == "arrange_parameters" else p for p in pipeline.PROGRAMS)  # fmt: skip
    monkeypatch.setattr(pipeline, "PROGRAMS", passes)


def for_gpu(s: ProgramState) -> ProgramState:
    """The orders that a GPU would read parameters in."""
    done = arrange_parameters(replace(s, target=cuda_target("sm_90a")))
    return replace(done, target=s.target)


def inputs() -> torch.Tensor:
    return torch.randn(5, 48, generator=torch.Generator().manual_seed(1)).bfloat16()


def agree(fast: monotile.CompiledModule, model: nn.Module) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(inputs()), model(inputs()), rtol=2e-2, atol=2e-2)


def test_the_models_own_are_moved() -> None:
    model = Columns().eval()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    fast = monotile.compile(model, (inputs(),), target="cpu", options=OPTIONS)
    for n, p in model.named_parameters():
        assert isinstance(p, nn.Parameter)
        assert p.requires_grad
        assert p.stride() == (1, 48)
        assert torch.equal(p, before[n])
    agree(fast, model)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-0.5)
    agree(fast, model)  # what is changed in place is seen
    again = monotile.compile(model, (inputs(),), target="cpu", options=OPTIONS)
    assert again.artifact.orders == fast.artifact.orders
    agree(again, model)


def test_not_asked_for() -> None:
    model = Columns().eval()
    fast = monotile.compile(model, (inputs(),), target="cpu", options=monotile.Options(cache=False))
    assert all(p.is_contiguous() for p in model.parameters())
    assert not fast.artifact.orders


def test_from_the_disk(tmp_path: Path) -> None:
    options = monotile.Options(cache_dir=str(tmp_path), arrange_parameters=True)
    for _ in range(2):
        model = Columns().eval()
        agree(monotile.compile(model, (inputs(),), target="cpu", options=options), model)
        assert not any(p.is_contiguous() for p in model.parameters())


def test_saved_loaded_and_other_parameters(tmp_path: Path) -> None:
    model = Columns().eval()
    fast = monotile.compile(model, (inputs(),), target="cpu", options=OPTIONS)
    fast.save(tmp_path / "columns.monotile")
    agree(monotile.load(tmp_path / "columns.monotile"), model)
    other = Columns().eval()
    with torch.no_grad():
        for p in other.parameters():
            p.neg_()
    fast.load_parameters(other.state_dict())
    agree(fast, other)


def test_what_shares_its_memory_is_copied() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = torch.randn(2, 48, 48).bfloat16() / 7
            self.w = nn.Parameter(self.both[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w

    model = Halves().eval()
    fast = monotile.compile(model, (inputs(),), target="cpu", options=OPTIONS)
    assert model.w.data_ptr() == model.both[1].data_ptr()
    agree(fast, model)


def test_orders() -> None:
    assert compose_orders(None, (1, 0)) == (1, 0)
    x = torch.empty(2, 3, 4)
    first, then = (2, 0, 1), (1, 2, 0)
    assert x.permute(first).permute(then).shape == x.permute(compose_orders(first, then)).shape
    held = {"w": torch.tensor([[0.0, 1, 2], [3, 4, 5]])}
    w = held["w"]
    move(held, {"w": (1, 0), "absent": (1, 0)})
    assert w.stride() == (1, 2)
    assert w.tolist() == [[0, 1, 2], [3, 4, 5]]
