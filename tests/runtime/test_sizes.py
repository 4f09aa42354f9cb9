"""Compiled models whose sizes the call decides, as a user calls them."""

import importlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import monotile
from monotile.compile import Kernels
from monotile.compile_inputs import Presets
from monotile.config import Options
from monotile.errors import CaptureError, InputError
from monotile.frontends.torch.capture import export as captured
from monotile.frontends.torch.sizes.ranges import Ranges, classes_of, ranges_of, size_classes
from monotile.size_classes import worthwhile
from monotile.targets.detect import detect_target

Out = tuple[torch.Tensor, torch.Tensor, int]


class Both(nn.Module):
    """Two arguments whose lengths are related, and a result that is a size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Out:
        return self.linear(x).softmax(0), y.cumsum(0) / y.shape[0], x.shape[0] + 1


LENGTH = Dim("length", min=1, max=12)
SHAPES = {"x": {0: LENGTH}, "y": {0: 2 * LENGTH + 1}}


def given(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 4), torch.randn(2 * n + 1)


@pytest.fixture(scope="module")
def model() -> Both:
    return Both().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def compiled(model: Both) -> monotile.CompiledModule:
    return monotile.compile(model, given(5), target="cpu", dynamic_shapes=SHAPES)


def same(found: Out, wanted: Out) -> None:
    for x, y in zip(found[:2], wanted[:2], strict=True):
        assert x.is_contiguous()
        torch.testing.assert_close(x, y)
    assert found[2] == wanted[2]


def test_every_size_of_the_range(model: Both, compiled: monotile.CompiledModule) -> None:
    for n in range(1, 13):
        x, y = given(n)
        same(compiled(x, y), model(x, y))
    x, y = given(6)
    same(compiled(x.t().contiguous().t(), y), model(x, y))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((13, 27), r"dimension 0 of args\[0\] is 13, and the model was compiled for 1 to 12"),
        ((0, 1), r"dimension 0 of args\[0\] is 0, and the model was compiled for 1 to 12"),
        ((5, 10), r"args\[1\]: expected \[.*\] = \[11\], got \[10\], where .* = 5 \(dimension 0 of args\[0\]\)"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(
    compiled: monotile.CompiledModule, lengths: tuple[int, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        compiled(torch.randn(lengths[0], 4), torch.randn(lengths[1]))


def test_other_wrong_arguments(compiled: monotile.CompiledModule) -> None:
    x, y = given(5)
    with pytest.raises(InputError, match=r"args\[0\]: expected \[.*, 4\] = \[4, 4\], got \[4\]"):
        compiled(x[0], y)
    with pytest.raises(InputError, match=r"convert it with .to\(torch.float32\)"):
        compiled(x.double(), y)
    with pytest.raises(InputError, match=r"expected \[5, 4\]|expected \[.*4\] = \[5, 4\]"):
        compiled(torch.randn(5, 3), y)


def test_saved_and_loaded(model: Both, compiled: monotile.CompiledModule, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model")
    again = monotile.load(tmp_path / "model")
    x, y = given(7)
    same(again(x, y), model(x, y))


def test_an_exported_program(model: Both) -> None:
    exported = export(model, given(5), dynamic_shapes=SHAPES, strict=False)
    run = monotile.compile(exported, target="cpu")
    x, y = given(9)
    same(run(x, y), model(x, y))


def test_kernels_for_smaller_sizes(model: Both, tmp_path: Path) -> None:
    short = Dim("length", min=1, max=4)
    shapes = {"x": {0: short}, "y": {0: 2 * short + 1}}
    small = monotile.compile(model, given(3), target="cpu", dynamic_shapes=shapes)
    whole = monotile.compile(model, given(5), target="cpu", dynamic_shapes=SHAPES).beside([small])
    assert whole.classes == (small, whole)
    whole.save(tmp_path / "model")
    for run in (whole, monotile.load(tmp_path / "model")):
        assert [len(m.classes) for m in run.classes] == [1, 2]
        for n in (1, 4, 5, 12):
            x, y = given(n)
            same(run(x, y), model(x, y))
    with pytest.raises(InputError, match="is 13"):
        whole(*given(13))


class Grid(nn.Module):
    """Two dimensions that are merged, split, and a result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Out:
        b, n, _ = x.shape
        y = self.linear(x.reshape(-1, 4)).view(b, n, 3)
        return y.softmax(1), y.sum((0, 1)) / (b * n), b


def test_kernels_for_one_value_of_a_size() -> None:
    """Of one dimension, and of all: that kernel reads no size."""
    model, options = Grid().eval().requires_grad_(False), Options()
    shapes = ({0: Dim("b", min=1, max=3), 1: Dim("n", min=2, max=5)},)
    exported = captured(model, (torch.randn(2, 3, 4),), None, dynamic_shapes=shapes)
    b, n = (name for name, _, _ in ranges_of(exported).of)
    classes = [{b: 1, n: 2}, {b: 1}, {b: 3, n: 2}, {}]
    with ThreadPoolExecutor(2) as pool:
        kernels = Kernels(exported, detect_target("cpu", options), options, Presets(), pool)
        *smaller, whole = [kernels.module(*kernels.begin(most).result()) for most in classes]
    run = whole.beside(smaller)
    assert [len(m.plan.inputs) > 1 for m in run.classes] == [False, True, True, True]
    for size in ((1, 2), (1, 5), (3, 2), (2, 4), (3, 5)):
        x = torch.randn(*size, 4)
        same(run(x), model(x))
    with pytest.raises(InputError, match=r"dimension 1 of .* is 1, and the model was compiled for 2 to 5"):  # fmt: skip
        run(torch.randn(1, 1, 4))
    with pytest.raises(InputError, match=r"= \[1, 2, 4\], got \[1, 2, 5\]|expected \[1, 2, 4\]"):
        run(torch.randn(1, 2, 5))


def test_a_size_needs_a_most(model: Both) -> None:
    free = Dim("length")
    with pytest.raises(CaptureError, match=r"dimension 0 of x has no upper bound: .*max=512"):
        monotile.compile(
            model, given(5), target="cpu", dynamic_shapes={"x": {0: free}, "y": {0: 2 * free + 1}}
        )


def test_a_model_that_does_not_take_every_size() -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2, 4).sum(1)

    x = torch.randn(12, 4)
    fast = monotile.compile(Pairs(), (x[:6],), target="cpu", dynamic_shapes=({0: LENGTH},))
    for n in (4, 8, 12):  # of 2 PyTorch sees a single pair
        torch.testing.assert_close(fast(x[:n]), Pairs()(x[:n]))
    with pytest.raises(
        InputError, match=r"does not hold where .* = 7 \(dimension 0 of args\[0\]\)"
    ):
        fast(x[:7])


def test_states_have_fixed_sizes() -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x.sum()

    with pytest.raises(CaptureError, match="updated in place: fix its size"):
        monotile.compile(Adds(), (torch.randn(6, 4),), target="cpu", dynamic_shapes=({0: LENGTH},))


def test_classes_halve() -> None:
    def most(*ranges: tuple[str, int, int]) -> list[dict[str, int]]:
        return size_classes(Ranges(ranges))

    assert most() == [{}]
    assert most(("n", 1, 512)) == [{"n": n} for n in (16, 32, 64, 128, 256, 512)]
    assert most(("b", 1, 3)) == [{"b": 1}, {"b": 2}, {"b": 3}]
    assert [x["n"] for x in most(("n", 1, 4096))][::5] == [32, 4096]
    assert most(("b", 1, 32), ("n", 1, 512))[-1] == {"b": 32, "n": 512}
    assert all(x["n"] % 64 == 0 for x in most(("n", 70, 4097))[1:-1])
    prompts = classes_of(Ranges((("n", 4, 2048),)), several=True, coarse=True)
    assert [x["n"] for x in prompts] == [256, 512, 1024, 2048]
    assert all(len(most(*[(c, 1, 99) for c in "abcdefg"[:k]])) <= 6 for k in range(8))


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        ([1, 2, 4, 8], [1, 2, 4, 8]),
        ([1, 1.05, 1.1, 2], [4, 8]),  # the first by way of the second
        ([1, 1.1, 1.2, 1.3], [2, 8]),  # together they would be slower than is worthwhile
        ([1, 1, 1, 1], [8]),
        ([1, 1.3, 1.35, 1.4], [1, 8]),
    ],
)
def test_classes_that_are_worth_it(seconds: list[float], kept: list[int]) -> None:
    known = dict(zip((1, 2, 4, 8), seconds, strict=True))
    classes = [{"n": n} for n in known]
    assert [x["n"] for x in worthwhile(classes, lambda c: known[c["n"]])] == kept


def test_classes_of_two_sizes() -> None:
    """A class gives way to the first that is for as much."""
    classes = [{"b": b, "n": n} for b in (1, 8) for n in (16, 64)]

    def seconds(c: Mapping[str, int]) -> float:
        return float(c["b"]) + c["n"] / 1000

    assert [*worthwhile(classes, seconds)] == [classes[1], classes[3]]
    assert [*worthwhile([{}], seconds)] == [{}]


def test_classes_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found out about them too: a second compilation lowers nothing."""

    def classes() -> list[str]:
        x = torch.randn(64, 256)
        run = monotile.compile(
            nn.Linear(256, 256).eval().requires_grad_(False),
            (x,),
            target="cuda:sm_90a",
            options=Options(cache_dir=str(tmp_path)),
            dynamic_shapes=({0: Dim("n", min=1, max=256)},),
        )
        return [m.source for m in run.classes]

    first = classes()
    assert 1 < len(first) < 6
    monkeypatch.setattr(importlib.import_module("monotile.compile"), "lower", None)
    assert classes() == first


def test_torch_compile_leaves_sizes_open(model: Both) -> None:
    torch._dynamo.reset()
    run = torch.compile(
        lambda x: model.linear(x).softmax(0),
        backend="monotile",
        dynamic=True,
        options={"target": "cpu"},
    )
    with torch.no_grad():
        for n in (5, 40, 64, 7):
            x = torch.randn(n, 4)
            torch.testing.assert_close(run(x), model.linear(x).softmax(0))
