"""Gated linear units whose products are side by side in the tiles of one step, on the emulator against PyTorch in float64."""

from collections.abc import Callable

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from monotile.choice.chooser import Prefer
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.frontends.torch.capture import functional, to_program
from monotile.frontends.torch.export import export
from monotile.frontends.torch.tf32 import Tf32
from monotile.kernels.matmul.method import MatmulGate
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.plan.walk import stages_in
from monotile.targets.cuda.emit import settle
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.emulate_model import TARGET, Emulated
from tests.frontend.sized import Sized
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
Gate = Callable[[Tensor, Tensor], Tensor]


class Siblings(nn.Module):
    """Two layers of one input, which horizontal fusion puts together: the MLP of Llama."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Halves(nn.Module):
    """One layer, of which a half each (of three parts one) goes into what follows."""

    def __init__(self, width: int, inner: int, parts: int = 2, *, bias: bool = True) -> None:
        super().__init__()
        self.parts = parts
        self.both = nn.Linear(width, parts * inner, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h, g, *more = self.both(x).chunk(self.parts, -1)
        return h * F.gelu(g) + sum(m.tanh() for m in more)


class Columns(nn.Module):
    """Weights that lie along their columns."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(width, 2 * inner) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(x @ self.w)


class Pairs(nn.Module):
    """Neighbours are a pair."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * inner)

    def forward(self, x: Tensor) -> Tensor:
        p = self.both(x)
        return p[..., ::2] * p[..., 1::2].sigmoid()


class Batches(nn.Module):
    """A matrix of weights for each of a batch: experts."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 2 * inner, width) / width**0.5)
        self.b = nn.Parameter(torch.randn(3, 1, 2 * inner))

    def forward(self, x: Tensor) -> Tensor:
        h, g = (x @ self.w.mT + self.b).chunk(2, -1)
        return h * F.silu(g)


class Chosen(Batches):
    """Data choose the matrix: where a part's lines lie is looked up."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__(width, inner)
        self.register_buffer("which", torch.tensor([2, 0, 2]))

    def forward(self, x: Tensor) -> Tensor:
        h, g = (x @ self.w[self.which].mT).chunk(2, -1)
        return h * F.silu(g)


class Residual(nn.Module):
    """What follows reads another tensor at the result's place, and one value a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() + F.glu(self.both(x)) * x.sum(-1, keepdim=True)


class Layers(nn.Module):
    """Layers that are rolled: a weight is a table of pointers."""

    def __init__(self, layer: Callable[[int, int], nn.Module], width: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(width, inner) for _ in range(3))
        self.backs = nn.ModuleList(nn.Linear(inner, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer, back in zip(self.layers, self.backs, strict=True):
            x = x + back(layer(x))
        return x


class Both(nn.Module):
    """Two layers without what follows, for `Layers`."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner), nn.Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)


def gates(plan: Plan) -> list[MatmulGate]:
    steps = (s for stage in stages_in(plan.body) for s in stage.steps)
    return [s.method for s in steps if isinstance(s.method, MatmulGate)]


def joined(holds: Callable[[Value], bool] = lambda _: True) -> Prefer:
    """Gates in the tiles of their products, which are cut in such blocks."""
    return Prefer("match", bool, Prefer("blocks", holds))


def by(instruction: str, **fields: object) -> Callable[[Value], bool]:
    wanted = {"instruction": instruction, **fields}
    return lambda value: all(value["method"][name] == x for name, x in wanted.items())


def check(
    model: nn.Module, x: Tensor, chooser: Prefer | None = None, workers: int = 3
) -> list[MatmulGate]:
    """Compiles `model` with its gate in the product's step, and compares with float64, with copies at once and as late as they may be."""
    fast = Emulated(model.eval(), (x,), workers, chooser=chooser or joined())
    right = exact(model, (x,))
    with torch.no_grad():
        theirs = error(model(x), right)
    limit = 2e-6 if x.dtype is torch.float32 else 1.5 * theirs
    for seed in (1, 2):
        assert error(fast(x, seed=seed)[0], right) <= limit
    found = gates(fast.plan)
    assert found
    return found


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "siblings": (lambda: Siblings(64, 96), (40, 64)),
    "halves": (lambda: Halves(72, 80), (2, 19, 72)),
    "without-bias": (lambda: Halves(64, 200, bias=False), (70, 64)),
    "three": (lambda: Halves(64, 48, 3), (37, 64)),
    "odd": (lambda: Halves(64, 45), (21, 64)),
    "odd-k": (lambda: Halves(67, 48), (21, 67)),
    "columns": (lambda: Columns(64, 96), (33, 64)),
    "pairs": (lambda: Pairs(64, 72), (33, 64)),
    "batches": (lambda: Batches(64, 40), (3, 33, 64)),
    "chosen": (lambda: Chosen(64, 40), (3, 33, 64)),
    "residual": (lambda: Residual(72), (33, 72)),
    "rolled-siblings": (lambda: Layers(Both, 64, 48), (24, 64)),
    "rolled-halves": (lambda: Layers(Halves, 64, 48), (24, 64)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    check(make().half(), torch.randn(shape).half())


TYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
CUTS: dict[str, tuple[str, Callable[[Value], bool], tuple[int, int, int], int]] = {
    # type; how the product is cut; rows, k, columns; workers
    "warpgroups": ("float16", by("wgmma", slices=1), (150, 136, 200), 3),
    "warpgroups-sliced": ("bfloat16", by("wgmma", slices=2), (70, 264, 72), 3),
    "warpgroups-in-teams": ("float16", by("wgmma", tasks_at_once=2), (200, 128, 96), 2),
    "warpgroups-across": ("float16", by("wgmma", warps_n=2), (66, 128, 160), 2),
    "two-in-a-round": ("float16", by("wgmma", slices=1, block_n=160), (130, 128, 160), 1),
    "part-of-a-round": ("float16", by("wgmma", slices=1, block_n=80), (130, 128, 80), 1),
    "two-in-a-short-round": ("float16", by("wgmma", slices=1, block_n=48), (130, 128, 80), 1),
    "warps": ("bfloat16", by("mma", slices=1), (100, 136, 72), 3),
    "warps-sliced": ("float16", by("mma", slices=4), (20, 264, 40), 3),
    "warps-in-passes": ("float32", by("mma"), (40, 100, 72), 3),
    "warpgroups-in-passes": ("float32", by("wgmma", slices=1), (70, 96, 72), 3),
    "scalars": ("float32", by("fma"), (40, 100, 72), 3),
}


@pytest.mark.parametrize("name", CUTS)
def test_cuts(name: str) -> None:
    torch.manual_seed(1)
    kind, holds, (rows, k, columns), workers = CUTS[name]
    model, x = Halves(k, columns).to(TYPES[kind]), torch.randn(rows, k).to(TYPES[kind])
    found = check(model, x, joined(holds), workers)
    assert all(holds({"method": msgspec.to_builtins(m)}) for m in found)


def test_the_next_task_is_asked_for() -> None:
    torch.manual_seed(2)

    def holds(value: Value) -> bool:
        return any(p["at"] == "task" for p in value["method"]["prefetch"])

    (found,) = check(Layers(Both, 128, 96).half(), torch.randn(300, 128).half(), joined(holds), 2)
    assert found.following


@pytest.mark.parametrize("block", [128, 192])
def test_columns_of_warpgroups(block: int) -> None:
    """Lines of 64 columns, of one half each or of both."""
    torch.manual_seed(3)
    holds = by("wgmma", block_n=block)
    (found,) = check(Columns(128, 96).half(), torch.randn(70, 128).half(), joined(holds))
    assert (found.right.major, found.block_n) == ("mn", block)


class Cast(nn.Module):
    """Weights of float32 that are rounded on their way: they are evaluated, not copied."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * inner)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (p.half().to(x) for p in (self.both.weight, self.both.bias))
        return F.glu(F.linear(x, weight, bias))


def test_weights_that_are_evaluated() -> None:
    torch.manual_seed(4)
    (found,) = check(Cast(64, 72), torch.randn(70, 64).half())
    assert found.right.copy == "element"


@pytest.mark.parametrize("instruction", ["mma", "wgmma"])
def test_tf32(instruction: str) -> None:
    torch.manual_seed(5)
    model, x = Halves(64, 72).eval(), torch.randn(70, 64)
    exported = export(model, (x,))
    captured = to_program(exported, functional(exported), {}, Tf32(True, True))
    fast = Emulated(captured, (x,), chooser=joined(by(instruction)))
    assert [(m.passes, m.instruction) for m in gates(fast.plan)] == [(1, instruction)]
    assert error(fast(x)[0], exact(model, (x,))) < 1e-3


@pytest.mark.parametrize("make", [Siblings, Halves])
def test_sizes_of_the_call(make: Callable[[int, int], nn.Module]) -> None:
    """Rows that a call does not have are in no task. The workspace is NaN at first: what is undefined would be seen."""
    torch.manual_seed(6)
    model = make(64, 48).half().eval()
    sized = Sized(model, (torch.randn(17, 64).half(),), ({0: Dim("n", min=1, max=300)},))
    target, options, chooser = TARGET, Options(workers=3), joined()
    first, constants = transform(sized.captured.program, sized.captured.constants, options)
    program, context = for_target(first, target, chooser=chooser)
    plan = schedule(program, target, options, context, chooser)
    plan, source = settle(program, plan, target, options)
    verify(plan, program, target)
    assert gates(plan)
    assert any(
        stage.live
        for stage in stages_in(plan.body)
        if isinstance(stage.steps[0].method, MatmulGate)
    )
    for rows in (1, 70, 300):
        args = (torch.randn(rows, 64).half(),)
        values = sized.values(program, args, constants)
        (found,) = sized.results(emulate(program, plan, source, values, late=True, seed=rows), args)
        assert error(found, exact(model, args)) < 2e-3
