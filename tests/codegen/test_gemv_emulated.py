"""Streamed weights on the emulator against PyTorch: shapes, types, loops, several vectors, and stages that stream nothing in between."""

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monotile.kernels.gemv.method import Gemv
from monotile.plan.nodes import Plan
from monotile.plan.walk import stages_in
from monotile.targets.target import Target
from tests.codegen.emulate import COMPILER, EmulationError
from tests.codegen.emulate_model import TARGET, Emulated
from tests.conftest import wide
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
# A last-level cache that no network's weights fit, and too little room on chip to keep them there.
SMALL = msgspec.structs.replace(TARGET, l2_bytes=1 << 10)


class Block(nn.Module):
    """A decoder's layer without its attention: products of one row with normalisations, a gate and residuals."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner)
        self.down, self.scale = nn.Linear(inner, width), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Network(nn.Module):
    """`layers` of these, and a head."""

    def __init__(self, layers: int, width: int, inner: int, head: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width, inner) for _ in range(layers))
        self.head = nn.Linear(width, head, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.tanh())


def streamed(plan: Plan) -> list[Gemv]:
    """The methods of all steps that stream."""
    steps = (s for stage in stages_in(plan.body) for s in stage.steps)
    return [s.method for s in steps if isinstance(s.method, Gemv)]


def check(model: nn.Module, x: Tensor, workers: int = 3, target: Target = SMALL) -> Emulated:
    """Compiles `model`, and compares with float64, with copies at once and as late as they may be."""
    fast = Emulated(model, (x,), workers, target=target)
    right = exact(model, (x,))
    with torch.no_grad():
        theirs = error(model(x), right)
    limit = 1e-6 if x.dtype is torch.float32 else 1.5 * theirs
    for seed in (1, 2):
        assert error(fast(x, seed=seed), right) <= limit
    return fast


@pytest.mark.parametrize("dtype", [torch.float32, wide(torch.float16), torch.bfloat16])
def test_layers_stream_one_after_the_other(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Network(4, 96, 200, 331).to(dtype).eval()
    fast = check(model, torch.randn(1, 96).to(dtype))
    assert len(streamed(fast.plan)) >= 3
    assert fast.plan.launch.ring is not None


@pytest.mark.parametrize("vectors", [wide(2), 3, 8])
def test_several_vectors(vectors: int) -> None:
    torch.manual_seed(1)
    model = Network(2, 96, 136, 72).half().eval()
    fast = check(model, torch.randn(vectors, 96).half())
    assert len(streamed(fast.plan)) >= 3


def test_several_vectors_of_many_columns() -> None:
    """All warps of a worker share a row, and each has several at a time."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3072, 128), nn.Tanh(), nn.Linear(128, 72)).half().eval()
    fast = check(model, torch.randn(4, 3072).half(), workers=2)
    assert any(m.parts == 8 and m.rows > 1 for m in streamed(fast.plan))


@pytest.mark.parametrize(
    ("columns", "rows"),
    [(32, 128), (24, 1000), (1024, 33), wide(4096, 24), (4096 + 64, 17), (12288, 9)],
)
def test_shapes(columns: int, rows: int) -> None:
    torch.manual_seed(2)
    model = nn.Linear(columns, rows).bfloat16().eval()
    fast = check(model, torch.randn(1, columns).bfloat16(), workers=2)
    assert streamed(fast.plan)


def test_more_workers_than_tasks() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 8), nn.Tanh(), nn.Linear(8, 300)
    )
    check(model.eval(), torch.randn(1, 64), workers=7)


class Chosen(nn.Module):
    """A layer as often as a result of it says, and then one of two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.one, self.other = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, least: Tensor) -> Tensor:
        def more(n: Tensor, x: Tensor) -> Tensor:
            return (n < 6) & (x.abs().max() > least)

        def layer(n: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return n + 1, torch.tanh(self.layer(x)) * 0.7

        _, x = torch.while_loop(more, layer, (torch.zeros((), dtype=torch.int64), x))
        return torch.cond(x.sum() > 0, self.one, self.other, (x,))


@pytest.mark.parametrize(("scale", "least"), [(1.0, 0.3), (-1.0, 0.3), (1.0, 5.0), (1.0, 0.0)])
def test_the_supplier_is_told_which_way_loops_and_choices_go(scale: float, least: float) -> None:
    torch.manual_seed(4)
    model, x = Chosen(448).eval().requires_grad_(False), torch.randn(1, 448) * scale
    fast = Emulated(model, (x, torch.tensor(least)), 3, target=SMALL)
    assert streamed(fast.plan)
    assert fast.source.text.count("ring.hear()") == 2
    with torch.no_grad():
        right = model(x, torch.tensor(least))
    for seed in (1, 2):
        (got,) = fast(x, torch.tensor(least), seed=seed)
        torch.testing.assert_close(got, right)


class OneOfMany(nn.Module):
    """A product beside that with one of many matrices, of which a call reads no other."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(96, 128)
        self.experts = nn.Parameter(torch.randn(32, 128, 64))

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return torch.einsum("bk,bkn->bn", self.dense(x).tanh(), self.experts[which])


def test_what_is_read_in_part_does_not_keep_others_from_streaming() -> None:
    torch.manual_seed(6)
    model, x = OneOfMany().eval(), torch.randn(1, 96)
    fast = Emulated(model, (x, torch.tensor([3])), 3, target=SMALL)
    assert streamed(fast.plan)
    assert "mt_failed" in fast.source.text
    for which in (torch.tensor([31]), torch.tensor([0])):
        torch.testing.assert_close(fast(x, which)[0], model(x, which), rtol=1e-5, atol=1e-4)
    with pytest.raises(EmulationError, match="failure 0"):
        fast(x, torch.tensor([32]))
