"""Models whose sizes the call decides, as kernels: the same results as PyTorch's, at sizes that end within a tile and at its ends; and nothing behind
what a call gives is read, or counts."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from monotile.config import Options
from monotile.errors import VerificationError
from monotile.ir.program import Program
from monotile.kernels.registry import read_plan
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Stage
from monotile.plan.walk import each_stage, stages_in
from monotile.targets.cuda.emit import emit, settle
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cpu_run import TARGET, Array, Compiled
from tests.codegen.emulate import COMPILER, emulate
from tests.frontend.sized import Args, Sized, same

CUDA = cuda_target("sm_90a")
OPTIONS = Options(workers=5)


class Encoder(nn.Module):
    """Layers that are rolled into a loop, of tokens."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(96, width)
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(width, n) for n in (3 * width, width)) for _ in range(layers))  # fmt: skip
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        b, n = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(n, device=ids.device))
        for mixing, out in self.layers:
            q, k, v = mixing(self.norm(x)).view(b, n, 3, 2, -1).permute(2, 0, 3, 1, 4)
            x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        x = F.max_pool2d((x + self.norm(self.second(x))).relu(), 3, 2, 1)
        return self.head(x.mean((2, 3)))


class Mixed(nn.Module):
    """Both dimensions, merged, reduced, and in the middle of a result."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 32), nn.Linear(32, 24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.down(self.up(x.reshape(-1, 24)).relu()).view(x.shape)
        return y, y.softmax(1).sum(0), y.mean((0, 1)), y[:, -1], torch.cat([y, x], 1)


class Sinks(nn.Module):
    """Attention in which a score more than there are keys takes its share, and the one key more of a longer memory."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing, self.sinks = nn.Linear(24, 72), nn.Parameter(torch.randn(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.mixing(x).view(b, n, 3, 2, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / 4
        sinks = self.sinks.view(1, 2, 1, 1).expand(b, 2, n, 1)
        shares = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        longer = torch.cat([v[:, :, :1], v], 2)
        return (shares @ v).sum(1) + longer.cumsum(2)[:, 0, 1:]


class SelfLoops(nn.Module):
    """Sums at indices, of which the call gives some: each tensor of terms is shorter than all of them."""

    def forward(self, nodes: torch.Tensor, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:  # fmt: skip
        own, zero = torch.arange(20, device=x.device), x.new_zeros(20, 8)
        rows, terms = torch.cat([nodes, own]), torch.cat([table[nodes], table])
        return zero.index_add(0, rows, torch.cat([x, table])), zero.index_add(0, rows, terms)


def tokens(b: int, n: int) -> Args:
    return (torch.randint(50, (b, n), generator=torch.Generator().manual_seed(n)),)


def images(b: int) -> Args:
    return (torch.randn(b, 3, 24, 24),)


def edges(n: int) -> Args:
    return torch.randint(20, (n,)), torch.randn(n, 8), torch.randn(20, 8)


def rows(b: int, n: int) -> Args:
    return (torch.randn(b, n, 24),)


EDGES = {0: Dim("n", min=2, max=60)}
Case = tuple[Callable[[], nn.Module], Callable[..., Args], object, Sequence[tuple[int, ...]]]
CASES: dict[str, Case] = {
    "tokens": (Encoder, tokens, ({1: Dim("n", min=1, max=96)},), [(1, 1), (1, 17), (1, 64), (1, 96)]),
    "images": (Images, images, ({0: Dim("b", min=1, max=12)},), [(1,), (5,), (12,)]),
    "both": (Mixed, rows, ({0: Dim("b", min=1, max=6), 1: Dim("n", min=1, max=20)},), [(1, 1), (4, 7), (6, 20)]),
    "sinks": (Sinks, rows, ({1: Dim("n", min=1, max=48)},), [(1, 1), (1, 17), (1, 47), (1, 48)]),
    "self-loops": (SelfLoops, edges, (EDGES, EDGES, None), [(2,), (30,), (59,), (60,)]),
}  # fmt: skip


def captured(name: str, dtype: torch.dtype) -> tuple[Sized, nn.Module]:
    make, args, shapes, sizes = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    given = [x.to(dtype) if x.is_floating_point() else x for x in args(*sizes[1])]
    wide = make().eval()
    wide.load_state_dict(model.state_dict())
    return Sized(model.to(dtype), tuple(given), shapes), wide


@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name: str) -> None:
    _, make, _, sizes = CASES[name]
    sized, model = captured(name, torch.float32)
    program, constants = transform(sized.captured.program, sized.captured.constants, Options())
    compiled = Compiled(for_target(program, TARGET)[0])
    for size in sizes:
        args = make(*size)
        found = compiled(sized.values(compiled.program, args, constants))
        with torch.no_grad():
            same(sized.results(found, args), model(*args), 1e-4)


def planned(sized: Sized) -> tuple[Program, dict[str, Array], Plan]:
    program, constants = transform(sized.captured.program, sized.captured.constants, OPTIONS)
    program, context = for_target(program, CUDA)
    plan, _ = settle(program, schedule(program, CUDA, OPTIONS, context), CUDA, OPTIONS)
    verify(plan, program, CUDA)
    return program, constants, plan


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", CASES)
def test_on_the_emulator(name: str) -> None:
    """Its workspace is NaN at first: what is undefined would be seen."""
    _, make, _, sizes = CASES[name]
    sized, model = captured(name, torch.float16)
    program, constants, plan = planned(sized)
    assert any(stage.live for stage in stages_in(plan.body))
    source = emit(program, plan, CUDA, OPTIONS)
    for k, size in enumerate(sizes):
        args = tuple(x.half() if x.is_floating_point() else x for x in make(*size))
        values = sized.values(program, args, constants)
        found = sized.results(emulate(program, plan, source, values, late=k % 2 == 0, seed=k), args)
        with torch.no_grad():
            wanted = model(*(x.float() if x.is_floating_point() else x for x in args))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        same([x.float() for x in found], wanted, 2e-2)


def test_tasks_that_are_needed_are_not_left_out() -> None:
    """The verifier refuses a stage that has fewer tasks than what is live."""
    sized, _ = captured("tokens", torch.float16)
    program, _, plan = planned(sized)

    def fewer(stage: Stage) -> Stage:
        live = tuple(msgspec.structs.replace(x, tile=2 * x.tile) for x in stage.live)
        return msgspec.structs.replace(stage, live=live)

    broken: Plan = msgspec.structs.replace(plan, body=each_stage(plan.body, fewer))
    with pytest.raises(VerificationError, match="leaves out tasks that it needs"):
        verify(broken, program, CUDA)


def test_a_plan_with_sizes_round_trips() -> None:
    sized, _ = captured("tokens", torch.float16)
    program, _, plan = planned(sized)
    again = read_plan(plan.to_json())
    assert again == plan
    assert emit(program, again, CUDA, OPTIONS).text == emit(program, plan, CUDA, OPTIONS).text
