"""The founding models on a GPU: one launch, right, repeatable, safe on several streams and in graphs."""

import itertools
import math
import threading

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import monotile
from monotile.choice.chooser import MODEL, Prefer
from monotile.compile import record
from monotile.plan.records import recorded
from monotile.runtime.profile import Record
from monotile.targets.cuda import emit
from tests.codegen.test_gather_emulated import QUESTIONS, Clamped, batches
from tests.models.accuracy import error, exact, example, fresh, tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events"),
]
pytest.importorskip("transformers")

MODELS = ["bert_base", "lstm", "lstm_unrolled", "mmoe"]
SMALL = {
    "bert_base": {"layers": 2, "tokens": 32},
    "lstm": {"layers": 3, "steps": 7, "width": 64},
    "lstm_unrolled": {"layers": 3, "steps": 7, "width": 64},
    "mmoe": {},
}


def on_gpu(name: str, dtype: torch.dtype, **size: int):
    model, args = example(name, dtype, **size)
    model, args = model.cuda(), tuple(x.cuda() for x in args)
    return model, args, monotile.compile(model, args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, dtype: torch.dtype) -> None:
    model, args, fast = on_gpu(name, dtype)
    inputs = fresh(args, 1)
    expected = exact(model, inputs)
    found = error(fast(*inputs), expected)
    if dtype is torch.float32:
        assert found <= 1e-5
    else:
        with torch.no_grad():
            assert found <= 1.5 * error(model(*inputs), expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_call_is_one_kernel_and_nothing_else(name: str) -> None:
    _, args, fast = on_gpu(name, torch.float16)
    fast(*args)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        fast(*args)
        torch.cuda.synchronize()
    on_device = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert on_device == ["monotile_kernel"]


@pytest.mark.parametrize("name", MODELS)
def test_small_case(name: str) -> None:
    """Small enough for compute-sanitizer (`make sanitize`), which sees no kernel but ours: the rest is on the CPU."""
    model, args, fast = on_gpu(name, torch.float16, **SMALL[name])
    inputs = fresh(args, 2)
    found = [x.cpu() for x in tensors(fast(*inputs))]
    model, inputs = model.cpu(), tuple(x.cpu() for x in inputs)
    expected = exact(model, inputs)
    with torch.no_grad():
        assert error(found, expected) <= 1.5 * error(model(*inputs), expected)


@pytest.mark.parametrize("groups", [1, 32])
def test_small_convolutions(groups: int) -> None:
    """Windows with padding; of few channels a group, so that several groups are one product's runs of columns."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 128, 3, 2, 1), nn.Conv2d(128, 128, 3, padding=1, groups=groups)
    layers = first, nn.ReLU(), second, nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 1)
    model = nn.Sequential(*layers).eval().requires_grad_(False).half()
    (x,) = fresh((torch.empty(2, 3, 64, 64, dtype=torch.float16),), 3)
    wide = exact(model, (x,))
    expected = error(model(x), wide)
    fast = monotile.compile(model.cuda(), (x.cuda(),))
    assert error([fast(x.cuda()).cpu()], wide) <= 1.5 * expected


@pytest.mark.parametrize(("way", "k"), [("teams", 128), ("following", 128), ("following", 768)])
def test_small_products_in_several_rounds(way: str, k: int) -> None:
    """Teams of a worker's threads take their tasks in turn; or a task asks for operands of the next one."""
    teams = Prefer("blocks", lambda value: value["method"]["tasks_at_once"] > 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(k, 1000), nn.GELU(), nn.Linear(1000, 32))
    model = model.eval().requires_grad_(False).half()
    (x,) = fresh((torch.empty(6300, k, dtype=torch.float16),), 3)
    wide = exact(model, (x,))
    expected = error(model(x), wide)
    options = monotile.Options(cache=False)
    model.cuda()
    choices = record(model, (x.cuda(),), chooser=teams if way == "teams" else MODEL)
    fast = monotile.compile(model, (x.cuda(),), options=options, choices=choices)
    steps = [r.stage.steps[0] for r in recorded(fast.plan)]
    assert any(s.method.teams > 1 if way == "teams" else s.method.ahead("task") for s in steps)
    assert error([fast(x.cuda()).cpu()], wide) <= 1.5 * expected


@pytest.mark.parametrize("arranged", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 520), (1, 3072), (40, 256)])
def test_small_columns(rows: int, width: int, arranged: bool) -> None:
    """x @ w: along the columns as it lies, or moved to lie along the sum; a change in place is seen in both."""

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = (torch.randn(width, width).half() / width**0.5 for _ in range(2))
            self.weights = nn.ParameterList(made)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for w in self.weights:
                x = torch.tanh(x @ w) + x
            return x

    torch.manual_seed(0)
    model = Columns().eval().requires_grad_(False)
    (x,) = fresh((torch.empty(rows, width, dtype=torch.float16),), 3)
    wide = exact(model, (x,))
    expected = error(model(x), wide)
    options = monotile.Options(cache=False, arrange_parameters=arranged)
    fast = monotile.compile(model.cuda(), (x.cuda(),), options=options)
    assert all(w.is_contiguous() != arranged for w in model.weights)
    assert error([fast(x.cuda()).cpu()], wide) <= 1.5 * expected
    model.weights[1].zero_()
    torch.testing.assert_close(fast(x.cuda()).cpu(), model.cpu()(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("heads", "keys"), [(12, 384), (44, 1000), (44, 200)])
def test_small_attention(heads: int, keys: int) -> None:
    """Warpgroups that have a ring each, or share one, and have the tensor cores in turn."""

    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, v)

    sides = [torch.empty(1, heads, n, 64, dtype=torch.float16) for n in (384, keys, keys)]
    args = fresh(sides, 3)
    wide = exact(Attention(), args)
    expected = error(Attention()(*args), wide)
    fast = monotile.compile(Attention(), tuple(x.cuda() for x in args))
    assert error([fast(*(x.cuda() for x in args)).cpu()], wide) <= 1.5 * expected


@pytest.mark.parametrize("question", QUESTIONS)
def test_small_questions(question: str) -> None:
    """Whether anything is infinite, told by the tasks that make it: in one call, not in the next."""
    model = Clamped(question, normalised=True).eval().requires_grad_(False).half()
    model.layers[0].weight.data[5, 5] = 0.05
    inputs = [batches(value, 1, 17, 5) for value in (65000.0, 1.0, 65000.0)]
    expected = [model(x) for x in inputs]
    fast = monotile.compile(model.cuda(), (inputs[0].cuda(),))
    for x, right in zip(inputs, expected, strict=True):
        torch.testing.assert_close(fast(x.cuda()).cpu(), right, atol=0.05, rtol=0.0)


@pytest.mark.parametrize("name", MODELS)
def test_calls_repeat_to_the_bit(name: str) -> None:
    _, args, fast = on_gpu(name, torch.float16)
    first = tensors(fast(*args))
    for _ in range(200):
        assert all(torch.equal(x, y) for x, y in zip(tensors(fast(*args)), first, strict=True))


def test_capture_in_a_cuda_graph() -> None:
    _, args, fast = on_gpu("bert_base", torch.float16, layers=2)
    expected = tensors(fast(*args))[0].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tensors(fast(*args))[0]
    for _ in range(3):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


class Draws(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + torch.rand_like(x), torch.randn_like(x)


def test_replays_draw_other_numbers() -> None:
    x = torch.zeros(3, 1000, device="cuda")
    fast = monotile.compile(Draws().eval(), (x,)).manual_seed(3)
    expected = [fast(x) for _ in range(3)]
    assert not torch.equal(expected[0][0], expected[1][0])
    slow = monotile.compile(Draws().eval(), (x.cpu(),), target="cpu").manual_seed(3)
    uniform, normal = slow(x.cpu())
    assert torch.equal(uniform, expected[0][0].cpu())
    torch.testing.assert_close(normal, expected[0][1].cpu(), atol=1e-5, rtol=1e-5)
    fast.manual_seed(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fast(x)
    for right in expected:
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, out, right))


def test_two_streams_and_two_threads_at_once() -> None:
    _, args, fast = on_gpu("bert_base", torch.float16, layers=2)
    inputs = [fresh(args, seed) for seed in range(2)]
    expected = [tensors(fast(*x))[0].clone() for x in inputs]
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[], []]

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found[number].append(tensors(fast(*inputs[number]))[0])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for number in range(2):
        assert len(found[number]) == 50
        assert all(torch.equal(x, expected[number]) for x in found[number])


def test_new_parameters_without_compiling_again() -> None:
    model, args, fast = on_gpu("mmoe", torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    assert error(fast(*args), exact(model, args)) <= 1e-5
    other, _ = example("mmoe", torch.float32)
    for p in other.parameters():
        p.data = torch.randn_like(p)
    fast.load_parameters({k: v.cuda() for k, v in other.state_dict().items()})
    assert error(fast(*args), exact(other.cuda(), args)) <= 1e-5


def test_a_profile_where_functions_are_compiled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own records lie outside of the functions' tiles."""
    monkeypatch.setattr(emit, "WHOLE", 0)
    widths = [256 + 32 * k for k in range(9)]
    pairs = itertools.pairwise(widths)
    model = nn.Sequential(*(m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())))
    model, x = model.half().cuda(), torch.randn(1024, widths[0]).half().cuda()
    plain = monotile.compile(model, (x,))
    noting = monotile.compile(model, (x,), options=monotile.Options(profile=True))
    assert noting.plan.launch.functions == "separate"
    assert torch.equal(noting(x), plain(x))
    tasks = sum(r.kind == "task" for r in noting.profile(x).records)
    assert tasks == sum(math.prod(r.stage.grid) for r in recorded(noting.plan))


@pytest.mark.parametrize("name", ["bert_base", "lstm", "mmoe"])
def test_a_profile_covers_the_call(name: str) -> None:
    """Every task is recorded, no worker's records overlap, and clocks agree."""
    model, args = example(name, torch.float16)
    model, args = model.cuda(), tuple(x.cuda() for x in args)
    fast = monotile.compile(model, args, options=monotile.Options(profile=True))
    expected = tensors(monotile.compile(model, args)(*args))
    for _ in range(5):
        assert all(map(torch.equal, tensors(fast(*args)), expected))
    seen = fast.profile(*args)
    found = [(r.stage, r.iteration, r.task) for r in seen.records if r.kind == "task"]
    assert len(found) == len(set(found))
    assert set(found) == {
        (r.stage.name, place, task)
        for r in recorded(fast.plan)
        for place in itertools.product(*map(range, r.extents))
        for task in range(math.prod(r.stage.grid))
    }
    assert seen.dropped == 0
    for worker in range(seen.workers):
        own = [r for r in seen.records if r.worker == worker]
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))
    barriers: dict[object, list[Record]] = {}
    for r in seen.records:
        if r.kind == "wait":
            barriers.setdefault((r.stage, r.iteration), []).append(r)
    for passed in barriers.values():  # clocks of different multiprocessors agree
        if len(passed) == seen.workers:
            assert min(r.end for r in passed) > max(r.start for r in passed) - 1e-6
    assert seen.seconds > 0
