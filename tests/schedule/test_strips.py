"""Concatenations whose parts are columns of one matrix."""

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import InternalError
from monotile.plan.access import overlap, resolve
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.plan.places import Strip
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import TARGET, Emulated
from tests.transform.test_round_factors import capture

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Dense(nn.Module):
    """Layers that read all before, as of a DenseNet; `odd`: rows of a part are no whole vectors; `given`: a part is a result as well, which is copied."""

    def __init__(self, odd: bool = False, given: bool = False) -> None:
        super().__init__()
        self.given, growth = given, 30 if odd else 32
        self.first, self.layers, size = nn.Conv2d(16, 64, 3, padding=1), nn.ModuleList(), 64
        for _ in range(3):
            layer = nn.Sequential(nn.BatchNorm2d(size), nn.ReLU(), nn.Conv2d(size, growth, 3, padding=1))  # fmt: skip
            self.layers.append(layer)
            size += growth
        self.last = nn.Conv2d(size, 16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [self.first(x)]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        y = self.last(torch.cat(found, 1).relu())
        return (y, found[1]) if self.given else (y, found[1].sum((2, 3)))


def strips(plan: Plan) -> dict[str, Strip]:
    return {n: p for n, found in plan.places.items() for p in found if isinstance(p, Strip)}


@needs_compiler
@pytest.mark.parametrize(("options", "count"), [({}, 3), ({"odd": True}, 0), ({"given": True}, 3)])
def test_what_lies_in_one_matrix(options: dict[str, bool], count: int) -> None:
    torch.manual_seed(0)
    model, x = Dense(**options).eval(), torch.randn(2, 16, 9, 9)
    run = Emulated(capture(model, x), (x,), workers=6)
    found = strips(run.plan)
    assert len(found) == count
    assert len({(p.offset, p.pitch) for p in found.values()}) <= 1
    for y, exact in zip(run(x), model.double()(x.double()), strict=True):
        torch.testing.assert_close(y.double(), exact, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize(("options", "count"), [({}, 4), ({"odd": True}, 0), ({"given": True}, 4)])
def test_in_one_matrix_on_the_cpu(options: dict[str, bool], count: int) -> None:
    torch.manual_seed(1)
    model, x = Dense(**options).eval(), torch.randn(2, 16, 64, 64)
    run = monotile.compile(model, (x,), target="cpu", options=monotile.Options(cache=False))
    assert len(strips(run.plan)) == count
    with torch.no_grad():
        found = run(x)
    for y, exact in zip(found, model.double()(x.double()), strict=True):
        torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)


def test_columns_are_apart() -> None:
    a, b, wide = (Strip(512, first, width, 128, 4) for first, width in ((0, 64), (64, 32), (32, 64)))  # fmt: skip
    rows = 10
    (x,), (y,), (z,) = (resolve(p, rows * p.width * 4, {}) for p in (a, b, wide))
    assert not overlap(x, y)
    assert overlap(x, z)
    assert overlap(y, z)
    assert overlap(
        x, ("workspace", 512 + 64 * 4, 512 + 64 * 4 + 8)
    )  # of no strip, between rows of it


@needs_compiler
def test_two_in_the_same_columns() -> None:
    model, x = Dense().eval(), torch.randn(2, 16, 9, 9)
    run = Emulated(capture(model, x), (x,), workers=6)
    (_, a), (name, b), *_ = sorted(strips(run.plan).items(), key=lambda pair: pair[1].first)
    moved = Strip(b.offset, a.first, b.width, b.pitch, b.size)
    others = tuple(moved if isinstance(p, Strip) else p for p in run.plan.places[name])
    plan = Plan(**{f: getattr(run.plan, f) for f in run.plan.__struct_fields__} | {"places": run.plan.places | {name: others}})  # fmt: skip
    with pytest.raises(InternalError):
        verify(plan, run.program, TARGET)
