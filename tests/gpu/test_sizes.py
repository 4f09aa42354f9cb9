"""Sizes that the call decides, on a GPU: every class of them, in CUDA graphs, from two streams at once."""

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.config import Options
from monotile.dynamo.backend import backend
from tests.codegen.test_sizes import CASES, Case

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for all classes of sizes, however small what they save is here."""
    monkeypatch.setattr("monotile.size_classes.MAX_SLOWDOWN", 0.0)


def compiled(case: Case) -> tuple[nn.Module, nn.Module, monotile.CompiledModule]:
    """The model in float16 on the GPU, the same in float32, and the kernels."""
    make, args, shapes, sizes = case
    torch.manual_seed(0)
    wide = make().eval().requires_grad_(False).cuda()
    model = copy.deepcopy(wide).half()
    given, alone = on_gpu(args(*sizes[1])), Options(cache=False)
    return model, wide, monotile.compile(model, given, options=alone, dynamic_shapes=shapes)


def on_gpu(args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.cuda().half() if x.is_floating_point() else x.cuda() for x in args)


def same(found: object, wanted: object) -> None:
    for x, y in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
        torch.testing.assert_close(x.float(), y, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", CASES)
def test_small_sizes(name: str) -> None:
    _, make, _, sizes = CASES[name]
    _, wide, fast = compiled(CASES[name])
    assert len(fast.classes) > 1
    for size in [*sizes, *reversed(sizes)]:
        args = on_gpu(make(*size))
        same(fast(*args), wide(*(x.float() if x.is_floating_point() else x for x in args)))


def test_small_sizes_captured_and_from_two_streams() -> None:
    _, make, _, sizes = CASES["tokens"]
    _, wide, fast = compiled(CASES["tokens"])
    graphs: list[tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor, object]] = []
    for size in sizes:
        args = on_gpu(make(*size))
        fast(*args)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = fast(*args)
        graphs.append((graph, result, wide(*args), args))  # they live as long as the graph
    streams = [torch.cuda.Stream() for _ in range(2)]
    for k in range(20):
        with torch.cuda.stream(streams[k % 2]):
            given = on_gpu(make(*sizes[k % len(sizes)]))
            same(fast(*given), wide(*given))
    for graph, result, wanted, _ in graphs:
        graph.replay()
        torch.cuda.synchronize()
        same(result, wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Inductor's own imports
def test_torch_compile_with_open_sizes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda().half()
    torch._dynamo.reset()
    run = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for n in (5, 40, 64, 7, 100):
            x = torch.randn(n, 64, device="cuda").half()
            same(run(x), model(x).float())


def test_images_of_any_height_and_width() -> None:
    model = nn.Conv2d(3, 8, 3, padding=1).cuda().half()
    shapes = ({2: Dim("h", min=8, max=40), 3: Dim("w", min=8, max=40)},)
    fast = monotile.compile(model, (torch.randn(1, 3, 16, 24).cuda().half(),), dynamic_shapes=shapes)  # fmt: skip
    with torch.no_grad():
        for h, w in ((8, 8), (17, 40), (40, 9)):
            x = torch.randn(1, 3, h, w).cuda().half()
            same(fast(x), model(x).float())
