"""Copies of weights in the order in which products on the CPU read them (`Options(arrange_parameters=True)`)."""

import copy
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import monotile
from monotile.errors import PlanError
from monotile.kernels.matmul.method import Matmul
from monotile.plan.places import Panels
from monotile.plan.walk import stages_in
from monotile.runtime.panels import packed
from monotile.targets.detect import detect_target

OPTIONS = monotile.Options(cache=False, arrange_parameters=True)
OWN = detect_target("cpu", monotile.Options())
MACHINES = {
    "vectors": msgspec.structs.replace(OWN, instructions=frozenset[str]()),
    "tiles": msgspec.structs.replace(OWN, instructions=frozenset({"vnni", "amx.bf16", "amx.int8"})),
}


@pytest.fixture(params=MACHINES, autouse=True)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A processor with tiles multiplies bfloat16 by them; where this one has none, by vectors from the same panels."""
    compiler = importlib.import_module("monotile.compile")
    monkeypatch.setattr(compiler, "detect_target", lambda *_: MACHINES[request.param])
    return request.param


class Batched(nn.Module):
    """A matrix for each of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 40, 70) / 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.w)


class OwnResidual(nn.Module):
    """What is added to a product is its operand, which a task holds for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.within = nn.LayerNorm(256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        return self.within(h) + h


class Tied(nn.Module):
    """One weight that is looked up and read along both its dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(x @ self.w), self.w) + self.w[3]


class Layers(nn.Module):
    """Equal layers, which are rolled, so that weights are a table's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(45, 70), (33, 45)),
    "long": (lambda: nn.Linear(1101, 70), (40, 1101)),
    "columns": (lambda: Tied(), (20, 64)),
    "batched": (Batched, (3, 24, 40)),
    "layers": (Layers, (19, 48)),
    "windows": (lambda: nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.Conv2d(64, 40, 3, padding=1)), (1, 3, 29, 31)),
    "whole runs": (lambda: nn.Sequential(nn.Conv2d(8, 32, 1), nn.Conv2d(32, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 33, 3, 2)), (1, 8, 13, 14)),
    "groups": (lambda: nn.Conv2d(32, 64, 3, padding=1, groups=2), (1, 32, 10, 10)),
    "transposed": (lambda: nn.ConvTranspose1d(32, 24, 8, 4), (1, 32, 30)),
}  # fmt: skip


def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make().eval().requires_grad_(requires_grad=False).to(dtype)
    return model, torch.randn(shape).to(dtype)


def agree(fast: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        error = (fast(x).double() - exact).norm() / exact.norm()
    assert float(error) < (2e-6 if x.dtype is torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_products(name: str, dtype: torch.dtype) -> None:
    model, x = made(name, dtype)
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    agree(fast, model, x)


def methods(fast: monotile.CompiledModule) -> list[Matmul]:
    steps = (step for stage in stages_in(fast.plan.body) for step in stage.steps)
    return [s.method for s in steps if isinstance(s.method, Matmul)]


def test_windows_are_read_in_place(machine: str) -> None:
    """Of an image whose channels are last: by tiles, in chunks of k that lie side by side. The argument's and the result's are not last."""
    model, x = made("whole runs", torch.bfloat16 if machine == "tiles" else torch.float32)
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    middle = methods(fast)[1]
    assert middle.right.copy == "panels"
    assert middle.block_k == (96 if machine == "tiles" else 160)
    assert machine == "tiles" or middle.left.copy in ("direct", "runs")


@pytest.mark.parametrize(("channels", "size", "stride"), [(16, 9, 1), (48, 14, 2), (160, 7, 1)])
def test_windows_beyond_an_edge_are_read_in_runs(channels: int, size: int, stride: int) -> None:
    """Of an image without zeros round it: several runs a chunk, or several chunks a run."""
    torch.manual_seed(1)
    first = nn.Conv2d(32, channels, 1)
    second = nn.Conv2d(channels, 72, 3, stride, padding=1)
    layers = (first, nn.ReLU(), second, nn.ReLU(), nn.Conv2d(72, 40, 1))
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 32, size, size)
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    assert [m.left.copy for m in methods(fast)][1] == "runs"
    assert not any(name.endswith("image") for name in fast.plan.places)
    agree(fast, model, x)


def test_a_residual_of_the_same_task() -> None:
    """It lies nowhere where its lines could be asked for by another's place."""
    model, x = OwnResidual().eval(), torch.randn(512, 256)
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    assert len(list(stages_in(fast.plan.body))) == 1
    agree(fast, model, x)


def test_not_asked_for() -> None:
    model, x = made("layers", torch.float32)
    fast = monotile.compile(model, (x,), target="cpu", options=monotile.Options(cache=False))
    assert not fast.plan.panels
    assert not fast.copied_bytes
    assert "copied" not in repr(fast)


def test_changes_are_seen() -> None:
    model, x = made("layers", torch.float32)
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    assert len(fast.plan.panels[0].parts) == 5
    assert f"{fast.copied_bytes} bytes of copied weights" in repr(fast)
    agree(fast, model, x)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-0.5)
    agree(fast, model, x)
    other = Layers().eval()
    fast.load_parameters(other.state_dict())
    agree(fast, other, x)
    with torch.no_grad():
        other.layers[2].weight.add_(1)  # pyright: ignore[reportCallIssue, reportArgumentType]
    agree(fast, other, x)


def test_from_a_file_and_from_the_disk(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, cache=True, cache_dir=str(tmp_path))
    for _ in range(2):
        model, x = made("layers", torch.float32)
        fast = monotile.compile(model, (x,), target="cpu", options=options)
        agree(fast, model, x)
    fast.save(tmp_path / "layers.monotile")
    again = monotile.load(tmp_path / "layers.monotile")
    assert again.copied_bytes == fast.copied_bytes
    agree(again, model, x)


def test_of_a_pruned_model() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(64, 128), nn.Linear(128, 64)
    model, x = nn.Sequential(first, nn.ReLU(), last).eval(), torch.randn(20, 64)
    with torch.no_grad():
        first.weight[64:], first.bias[64:] = 0, 0
    options = msgspec.structs.replace(OPTIONS, specialise=True)
    fast = monotile.compile(model, (x,), target="cpu", options=options)
    assert fast.copied_bytes == 2 * 64 * 64 * 4
    agree(fast, model, x)
    with torch.no_grad():
        first.weight[:64] *= 2
    agree(fast, model, x)


def test_a_plan_with_other_copies_is_refused() -> None:
    model, x = made("linear", torch.float32)
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    again = monotile.compile(model, (x,), target="cpu", options=OPTIONS, plan=fast.plan)
    agree(again, model, x)
    (p,) = fast.plan.panels
    for broken in (
        msgspec.structs.replace(p, slot=p.slot + 1),
        msgspec.structs.replace(p, block=1),
    ):
        plan = msgspec.structs.replace(fast.plan, panels=(broken,))
        with pytest.raises(PlanError, match="panels"):
            monotile.compile(model, (x,), target="cpu", options=OPTIONS, plan=plan)
    for broken in (msgspec.structs.replace(fast.plan, panels=()), fast.plan):
        options = OPTIONS if broken is not fast.plan else monotile.Options(cache=False)
        with pytest.raises(PlanError, match="panels"):
            monotile.compile(model, (x,), target="cpu", options=options, plan=broken)
    none = msgspec.structs.replace(fast.plan, panels=())
    with pytest.raises(PlanError, match="panels"):
        monotile.compile(
            model, (x,), target="cpu", options=monotile.Options(cache=False), plan=none
        )


ORDERS = {
    "words": Panels("w", ("y",), 0, (), ((33, 40),), ((40, 1),), 32, 16, 16, 2),
    "vectors": Panels("w", ("y",), 0, (), ((33, 40),), ((40, 1),), 16, 16, 1, 1),
    "several axes": Panels("w", ("y",), 2, ((2, 480),), ((3, 160),), ((4, 1), (20, 8)), 8, 4, 4, 2),
    "backwards": Panels("w", ("y",), 39, ((2, 600),), ((15, 40),), ((40, -1),), 16, 16, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_each_value_lies_where_the_order_says(name: str) -> None:
    p, x = ORDERS[name], torch.arange(1.0, 1501.0)
    got = packed(x, p).flatten()
    assert got.numel() == p.elements
    _, columns, depth = p.shape
    seen = torch.zeros(p.elements, dtype=torch.bool)
    for b, matrix in enumerate(itertools.product(*(range(n) for n, _ in p.batches))):
        for c, column in enumerate(itertools.product(*(range(n) for n, _ in p.columns))):
            for k, value in enumerate(itertools.product(*(range(n) for n, _ in p.depth))):
                strides = [s for _, s in (*p.batches, *p.columns, *p.depth)]
                at = p.first + sum(
                    i * s for i, s in zip((*matrix, *column, *value), strides, strict=True)
                )
                word, piece = k // p.word, k // p.word // p.run
                place = (
                    b * columns + c // p.block * p.block
                ) * depth + piece * p.run * p.word * p.block
                place += c % p.block // p.group * p.group * p.run * p.word
                place += (word % p.run * p.group + c % p.group) * p.word + k % p.word
                assert got[place] == x[at]
                seen[place] = True
    assert not got[~seen].any()
