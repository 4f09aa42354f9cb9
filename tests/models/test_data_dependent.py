"""Data-dependent selections: the rows that a mask selects, or that choose an expert. On the CPU, and on the emulator, against PyTorch in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import monotile
from monotile.plan.walk import stages_in
from monotile.runtime.accuracy import exact, tensors
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error

Args = tuple[torch.Tensor, ...]


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Loop(nn.Module):
    """A loop over experts, as models that are written by hand have it."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(64, experts)
        self.experts = nn.ModuleList(Expert(64, 96) for _ in range(experts))

    def routed(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Rows, the weights of the experts that each has chosen, which these are, and zeros."""
        flat = x.view(-1, 64)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        return flat, weights, chosen, torch.zeros_like(flat)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weights, chosen, out = self.routed(x)
        for k, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == k)
            out[rows] += expert(flat[rows]) * weights[rows, place, None]
        return out.view(x.shape)


class Added(Loop):
    """The same in transformers' words."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weights, chosen, out = self.routed(x)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for k, expert in enumerate(self.experts):
            place, rows = torch.where(mask[k])
            found = expert(flat[None, rows].reshape(-1, 64)) * weights[rows, place, None]
            out.index_add_(0, rows, found)
        return out.view(x.shape)


class Hit(Loop):
    """A loop over the experts that are chosen, as in transformers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weights, chosen, out = self.routed(x)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for k in hit:
            k = k[0]
            if k == len(self.experts):
                continue
            place, rows = torch.where(mask[k])
            found = self.experts[k](flat[rows]) * weights[rows, place, None]
            out.index_add_(0, rows, found)
        return out.view(x.shape)


class Named(Loop):
    """The same with a name for each, as in Switch Transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.named = nn.ModuleDict({f"expert_{k}": e for k, e in enumerate(self.experts)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weights, chosen, out = self.routed(x)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for k in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            place, rows = torch.where(mask[k].squeeze(0))
            found = self.named[f"expert_{k[0]}"](flat[rows]) * weights[rows, place, None]
            out.index_add_(0, rows, found)
        return out.view(x.shape)


class Skipped(Loop):
    """Experts that nothing chooses are left out, by how many rows there are or by a list of counts."""

    def __init__(self, *, lists: bool) -> None:
        super().__init__()
        self.lists = lists

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weights, chosen, out = self.routed(x)
        if self.lists:
            counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
            for k, expert in enumerate(self.experts):
                if counts[k] == 0:
                    continue
                rows, place = torch.where(chosen == k)
                out[rows] += expert(flat[rows]) * weights[rows, place, None]
        else:
            for k, expert in enumerate(self.experts):
                rows, place = torch.where(chosen == k)
                if rows.numel() == 0:
                    continue
                out[rows] += expert(flat[rows]) * weights[rows, place, None]
        return out.view(x.shape)


class Kept(nn.Module):
    """Attention among the tokens that a mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = x[mask]
        q, k, v = self.qkv(kept).view(-1, 3, 4, 16).permute(1, 2, 0, 3)
        found = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(-1, 64)
        out = x.clone()
        out[mask] = kept + found
        return out


class Reduced(nn.Module):
    """A mask along a dimension in the middle, and of single elements."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Args:
        y = x[:, mask[0]]
        rows = mask[0].nonzero()[:, 0]
        back = torch.zeros_like(x).index_add(1, rows, y.softmax(2))
        return back, torch.masked_select(x, x > 0).sum(), torch.zeros_like(x).masked_scatter(mask[..., None], x[mask] * 2)  # fmt: skip


class Results(nn.Module):
    """Results that are as long as data say, and how long they are."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[Any, ...]:
        scores = x[..., 0][mask]
        order = scores.argsort(descending=True)
        best = x[mask][order]
        return best, best.cumsum(0), (x > 0.5).nonzero(), x[:, mask[0]], scores.shape[0]


class InBranches(nn.Module):
    """Both branches, and what follows, select by the same mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.sum() > 0:
            y = x[mask].sin().sum(0)
        else:
            y = x[mask].relu().cumsum(0).sum(0) + x[~mask].sum(0)
        return y, x[mask].sum(0)


def one(tokens: int) -> Args:
    return (torch.randn(2, tokens, 64),)


def two(tokens: int) -> Args:
    return torch.randn(2, tokens, 64), torch.rand(2, tokens) > 0.5


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Args]]] = {
    "loop": (Loop, one),
    "added": (Added, one),
    "hit": (Hit, one),
    "named": (Named, one),
    "skipped": (lambda: Skipped(lists=False), one),
    "skipped by a list": (lambda: Skipped(lists=True), one),
    "kept": (Kept, two),
    "reduced": (Reduced, two),
    "results": (Results, two),
    "branches": (InBranches, two),
}


def made(name: str) -> tuple[nn.Module, Callable[[int], Args]]:
    torch.manual_seed(0)
    make, args = CASES[name]
    return make().eval().requires_grad_(False), args


def check(model: nn.Module, found: Any, args: Args, most: float = 2e-5) -> None:
    right = exact(model, (args, {}))
    assert [x for x in _leaves(found) if isinstance(x, int)] == [x for x in _leaves(right) if isinstance(x, int)]  # fmt: skip
    assert [x.shape for x in tensors(found)] == [x.shape for x in tensors(right)]
    assert error([x.double() for x in tensors(found)], [x.double() for x in tensors(right)]) < most


def _leaves(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple | list) else [x]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [1, 9])
def test_on_the_cpu(name: str, tokens: int) -> None:
    model, args = made(name)
    fast = monotile.compile(model, args(tokens), target="cpu")
    for _ in range(3):
        given = args(tokens)
        check(model, fast(*given), given)


@pytest.mark.parametrize("name", ["kept", "reduced", "results", "branches"])
@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_masks_of_nothing_and_of_all(name: str, kept: float) -> None:
    model, args = made(name)
    x, _ = args(9)
    mask = torch.full((2, 9), bool(kept))
    fast = monotile.compile(model, (x, mask), target="cpu")
    check(model, fast(x, mask), (x, mask))


@pytest.mark.parametrize("name", ["kept", "hit", "loop", "reduced", "results"])
def test_open_numbers_of_tokens(name: str) -> None:
    model, args = made(name)
    tokens = Dim("tokens", min=1, max=40)
    shapes = tuple({1: tokens} for _ in args(7))
    fast = monotile.compile(model, args(7), target="cpu", dynamic_shapes=shapes)
    for n in (1, 2, 33, 40):
        given = args(n)
        check(model, fast(*given), given)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", ["kept", "added", "hit", "loop", "reduced"])
def test_on_the_emulator(name: str) -> None:
    model, args = made(name)
    model.half()
    given = tuple(x.half() if x.is_floating_point() else x for x in args(70))
    fast = Emulated(model, given, workers=5)
    right = exact(model, (given, {}))
    assert error(fast(*given), tensors(right)) < 4e-3


def test_only_live_rows_are_computed() -> None:
    model, _ = made("loop")
    fast = Emulated(model.half(), (torch.randn(1, 100, 64).half(),), workers=12)
    sized = [s for s in stages_in(fast.plan.body) if s.live]
    assert len(sized) >= 2  # the rolled experts, and the last one


def test_a_long_mask_is_listed_by_writing() -> None:
    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 1.0].exp().sum()

    x = torch.randn(5000)
    check(Long(), monotile.compile(Long(), (x,), target="cpu")(x), (x,))


def test_saved_and_loaded(tmp_path: Any) -> None:
    model, args = made("results")
    monotile.compile(model, args(9), target="cpu").save(tmp_path / "model.mt")
    given = args(9)
    check(model, monotile.load(tmp_path / "model.mt")(*given), given)
