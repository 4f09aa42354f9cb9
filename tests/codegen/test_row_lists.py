"""Scattered sums over lists of each row's terms that are made once, on the emulator."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from monotile.analysis.ends import segment_ends
from monotile.choice.chooser import Prefer
from monotile.ir.program import Compute, Program, statements
from monotile.kernels.scatter.method import ListRows
from monotile.plan.nodes import Plan
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER, EmulationError
from tests.codegen.emulate_model import Emulated
from tests.frontend.against import Of
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

NODES, EDGES = 40, 300
KINDS: dict[str, Callable[[int], Tensor]] = {
    "random": lambda n: torch.randint(0, NODES, (n,)),
    "a hub": lambda n: torch.where(torch.rand(n) < 0.9, 7, torch.randint(0, NODES, (n,))),
    "rows without terms": lambda n: torch.randint(0, 3, (n,)) * 19,
    "in order": lambda n: torch.arange(n) * NODES // n,
    "all in the last": lambda n: torch.full((n,), NODES - 1),
}


class Attention(nn.Module):
    """Shares of a softmax over the edges of a node, as weights of a sum; and once more."""

    def forward(self, x: Tensor, weights: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for _ in range(2):
            total = weights.new_zeros(2, NODES, 3).index_add(1, target, weights)
            parts = (weights / total[:, target])[..., None] * x[:, source]
            x = torch.zeros_like(x).index_add(1, target, parts)
            x = nn.functional.elu(x.flatten(2)).unflatten(2, (3, 8))
        return x


class Layers(nn.Module):
    """Sums of neighbours in layers that roll."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x + torch.zeros_like(x).index_add(0, target, x[source])).relu()
        return x


class Bases(nn.Module):
    """What is added to is made by the network; two indices, and each is used twice."""

    def forward(self, x: Tensor, edges: Tensor, one: Tensor, other: Tensor) -> Tensor:
        y = (x * 2).index_add(0, one, edges * edges).sin()
        z = x.cos().index_add(0, other, edges)
        return y.index_add(0, one, z[other]) + z.index_add(0, other, y[one])


def listed(model: nn.Module, args: tuple[Tensor, ...], lists: int = 1) -> Emulated:
    fast = Emulated(model, args, chooser=Prefer("list rows", bool))
    assert _methods(fast.plan) == lists
    return fast


def _methods(plan: Plan) -> int:
    steps = [step for s in stages_in(plan.body) for step in s.steps]
    return sum(isinstance(step.method, ListRows) for step in steps)


def accurate(fast: Emulated, model: nn.Module, args: tuple[Tensor, ...], seed: int) -> None:
    wanted = exact(model, args)
    with torch.no_grad():
        eager = error([model(*args)], wanted)
    assert error(fast(*args, seed=seed), wanted) <= 2 * eager + 4e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_shares_of_the_edges_of_a_node(dtype: torch.dtype) -> None:
    def args(kind: str) -> tuple[Tensor, ...]:
        x, weights = torch.randn(2, NODES, 3, 8), torch.rand(2, EDGES, 3) + 0.5
        source = torch.randint(-NODES, NODES, (EDGES,))
        return x.to(dtype), weights.to(dtype), source, KINDS[kind](EDGES)

    model = Attention()
    fast = listed(model, args("random"))
    for seed, kind in enumerate(KINDS):
        accurate(fast, model, args(kind), seed)


def test_lists_of_layers_are_made_once() -> None:
    model = Layers()

    def args(kind: str) -> tuple[Tensor, ...]:
        return torch.randn(NODES, 12), torch.randint(0, NODES, (EDGES,)), KINDS[kind](EDGES)

    fast = listed(model, args("random"))
    for seed, kind in enumerate(KINDS):
        accurate(fast, model, args(kind), seed)


def test_sums_in_longer_rows() -> None:
    """Whole vectors for the product that reads what follows them."""
    model = Layers(20).half()
    x, source = torch.randn(NODES, 20).half() / 8, torch.randint(0, NODES, (EDGES,))
    args = x, source, KINDS["random"](EDGES)
    fast = Emulated(model, args, chooser=Prefer("list rows", bool, Prefer("pad rows", bool)))
    assert any(segment_ends(s) and s.out.shape[-1] == 24 for s in _reductions(fast.program))
    accurate(fast, model, args, 0)


def _reductions(program: Program) -> list[Compute]:
    return [s for s in statements(program.body) if isinstance(s, Compute) and s.combiner]


def test_two_indices() -> None:
    model = Bases()

    def args(one: str, other: str) -> tuple[Tensor, ...]:
        x, edges = torch.randn(NODES, 5), torch.randn(EDGES, 5)
        return x, edges, KINDS[one](EDGES), KINDS[other](EDGES)

    fast = listed(model, args("random", "random"), 2)
    for seed, kinds in enumerate((("random", "a hub"), ("rows without terms", "in order"))):
        accurate(fast, model, args(*kinds), seed)


class Counts(nn.Module):
    """Sums of integers."""

    def forward(self, values: Tensor, rows: Tensor) -> Tensor:
        degree = torch.zeros(NODES, dtype=torch.int64).index_add(0, rows, torch.ones_like(rows))
        return degree * torch.zeros(NODES, dtype=torch.int64).index_add(0, rows, values)


def test_more_terms_than_a_block_keeps() -> None:
    """With fewer at a time, more often."""
    values = torch.randint(0, 1000, (5000,))
    model, args = Counts(), (values, KINDS["random"](5000))
    fast = listed(model, args)
    for seed, kind in enumerate(("random", "a hub", "all in the last")):
        args = values, KINDS[kind](5000)
        torch.testing.assert_close(fast(*args, seed=seed)[0], model(*args), rtol=0, atol=0)


def test_indices_out_of_range_are_found() -> None:
    x, source, target = torch.randn(NODES, 12), *torch.randint(0, NODES, (2, EDGES))
    fast = listed(Layers(), (x, source, target))
    for index, wrong in ((source, NODES), (source, -NODES - 1), (target, NODES), (target, -1)):
        before, index[123] = index[123].clone(), wrong
        with pytest.raises(EmulationError):
            fast(x, source, target)
        index[123] = before
    fast(x, source, target)


def joined(x: Tensor, source: Tensor, rows: Tensor) -> Tensor:
    """Terms of two tables."""
    table, half = torch.cat([x, 2 * x]), EDGES // 2
    looked_up = torch.cat([table[source[:half]], x[source[half:] % NODES]])
    own = torch.cat([x.repeat(3, 1), table.repeat(3, 1)[: EDGES - 3 * NODES].sin()])
    zero = torch.zeros_like(x)
    return zero.index_add(0, rows, looked_up) * zero.index_add(0, rows, own)


def padded(x: Tensor, source: Tensor, rows: Tensor) -> Tensor:
    """Look-ups that may be behind a table, or before it."""
    after, before = (nn.functional.pad(x, (0, 0, n, NODES - n)) for n in (0, NODES))
    zero = torch.zeros_like(x)
    return zero.index_add(0, rows, after[source]) * zero.index_add(0, rows, before[source])


@pytest.mark.parametrize("f", [joined, padded])
def test_a_look_up_that_a_term_does_not_need_is_no_error(f: Callable[..., Tensor]) -> None:
    args = torch.randn(NODES, 12), torch.randint(0, 2 * NODES, (EDGES,)), KINDS["random"](EDGES)
    model = Of(f)
    fast = listed(model, args)
    for seed in range(2):
        accurate(fast, model, args, seed)
    args[1][7] = 5 * NODES
    with pytest.raises(EmulationError):
        fast(*args)
