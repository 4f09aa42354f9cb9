"""Operands of products with odd rows, in longer ones."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from monotile.choice.chooser import Prefer
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.expr import loads
from monotile.ir.program import Compute, Program, defined, statements
from monotile.kernels.draft import Context
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import for_target, transform
from monotile.plan.nodes import Plan
from monotile.plan.walk import stages_in
from monotile.schedule.odd_rows import pad_odd_rows
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.transform.layout.odd_rows import odd_product
from monotile.transform.layout.pad_rows import pad_rows
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide

ROWS, ODD = 24, 45
CUDA = cuda_target("sm_90a")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Read(nn.Module):
    """What a product reads is read by another statement as well, which may be a result."""

    def __init__(self, *, result: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, ODD, bias=bias), nn.Linear(ODD, 40)
        self.result, self.bias = result, bias

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.first(x).relu() if self.bias else self.first(x)
        return self.second(y), y if self.result else y.amax(-1)


class Crosses(nn.Module):
    """Three layers that carry odd rows. made: whether the first are computed."""

    def __init__(self, *, made: bool) -> None:
        super().__init__()
        self.layers, self.made = nn.ModuleList(nn.Linear(ODD, ODD) for _ in range(3)), made

    def forward(self, x: Tensor) -> Tensor:
        first = x = torch.cat([x[:, :13], x[:, 13:].tanh()], 1) if self.made else x
        for layer in self.layers:
            x = (first * layer(x) + x).tanh()
        return x.amax(-1)


class Times(nn.Module):
    """Products with a matrix of odd rows that is read along them, and with an input of as many."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(32, ODD) / 6)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x @ self.turned).tanh(), x.mT @ y


class Batches(nn.Module):
    """Both operands are given; of one, what is summed over is not the last dimension."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


class Rows(nn.Module):
    """Data says which rows are read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(ODD, 32)

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.linear(x[which])


def chain() -> nn.Module:
    """Products whose results, and operands, all are of odd rows."""
    widths = (ODD, 51, 43, ODD, 40)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*(x for layer in layers for x in (layer, nn.ReLU())))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "input": (lambda: nn.Linear(ODD, 32), ((ROWS, ODD),)),
    "intermediate": (Read, ((ROWS, 32),)),
    "no epilogue": (lambda: Read(bias=False), ((ROWS, 32),)),
    "result": (lambda: Read(result=True), ((ROWS, 32),)),
    "carried": (lambda: Crosses(made=True), ((ROWS, ODD),)),
    "carried input": (lambda: Crosses(made=False), ((ROWS, ODD),)),
    "turned": (Times, ((ROWS, 32), (ROWS, 40))),
    "batches": (Batches, ((2, ROWS, ODD), (2, ODD, 40))),
    "chain": (chain, ((ROWS, ODD),)),
    "gathered": (Rows, ((ROWS, ODD), ())),
}


def emulated(name: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...], Emulated]:
    make, shapes = CASES[name]
    model = make().to(dtype).requires_grad_(False)
    args = tuple(torch.randn(s).to(dtype) if s else torch.randint(ROWS, (32,)) for s in shapes)
    return model, args, Emulated(model, args, workers=4, chooser=Prefer("pad rows", bool))


def products(plan: Plan) -> list[Matmul]:
    steps = (s for stage in stages_in(plan.body) for s in stage.steps)
    return [s.method for s in steps if isinstance(s.method, Matmul)]


def expected(model: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    wide = (x.double() if x.is_floating_point() else x for x in args)
    out = model.double()(*wide)
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float16) for name in CASES]
    + [(name, torch.float32) for name in ("input", "result", "turned", "chain")]
    + [wide(name, torch.float32) for name in ("intermediate", "no epilogue", "carried", "carried input", "batches", "gathered")],
)  # fmt: skip
def test_what_is_multiplied(name: str, dtype: torch.dtype) -> None:
    model, args, run = emulated(name, dtype)
    assert products(run.plan)
    lanes = 16 // dtype.itemsize
    assert all(x.vector == lanes for m in products(run.plan) for x in (m.left, m.right))
    found = run(*args)
    close = {torch.float16: 2e-2, torch.float32: 2e-3}[dtype]
    for x, y in zip(found, expected(model, args), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=close, atol=close)


def test_what_is_computed_longer() -> None:
    """Only what may be, and what is carried together; other tensors are copied."""
    made = {name: rows(emulated(name, torch.float16)[2].program) for name in CASES}
    assert made["intermediate"] == {"relu": 48, "linear_product": 48, "p_second_weight_rows": 48}
    assert made["no epilogue"].keys() == {"linear", "linear_wide", "p_second_weight_rows"}
    assert made["result"].keys() == {"relu", "linear_product", "relu_rows", "p_second_weight_rows"}
    assert made["result"]["relu"] == ODD
    assert {made["carried"][n] for n in made["carried"] if not n.endswith("_all_rows")} == {48}
    assert "x_rows" in made["carried input"]
    assert "x_rows" not in made["gathered"]
    assert made["turned"].keys() == {"matmul", "tanh", "p_turned_rows"}


def rows(program: Program) -> dict[str, int]:
    """The lengths of rows that are odd, or were before."""
    made = (t for s in statements(program.body) for t in defined(s))
    return {t.name: t.shape[-1] for t in made if t.shape[-1] in (ODD, 48) or "_rows" in t.name}


@pytest.mark.parametrize("name", ["intermediate", "no epilogue", "result", "carried"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite(name: str, value: float) -> None:
    """Zeros behind a row meet no infinity: it gives what it gives in PyTorch."""
    make, shapes = CASES[name]
    model = make().half().requires_grad_(False)
    for p in model.parameters():
        p.abs_()  # so that infinities stay what they are
    x = torch.randn(shapes[0]).half()
    x[3, 5] = value
    run = Emulated(model, (x,), workers=4, chooser=Prefer("pad rows", bool))
    for found, wanted in zip(run(x), expected(model, (x,)), strict=True):
        wanted = wanted.half().double()
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [33, 41, 45])
def test_copies_of_many_rows(dtype: torch.dtype, columns: int) -> None:
    """Vectors round rows that are not aligned: several loads are under way."""
    model = nn.Linear(columns, 16).to(dtype).requires_grad_(False)
    x = torch.randn(1100, columns).to(dtype)
    run = Emulated(model, (x,), workers=2, chooser=Prefer("pad rows", bool))
    assert "mt::load_constant_unaligned<" in run.source.text
    (found,) = run(x)
    (wanted,) = expected(model, (x,))
    close = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 2e-3}[dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("value", [1.0, torch.inf])
def test_the_small_operand_alone(dtype: torch.dtype, value: float) -> None:
    model = nn.Linear(ODD, 64).to(dtype).requires_grad_(False)
    x = torch.randn(1100, ODD).to(dtype)
    x[7, ODD - 1] = value
    small = Prefer("pad rows", lambda taken: not taken, Prefer("pad small rows", bool))
    run = Emulated(model, (x,), workers=4, chooser=small)
    assert [t.name for s in run.program.body for t in defined(s) if t.name.endswith("_rows")] == ["p_weight_rows"]  # fmt: skip
    (method,) = products(run.plan)
    assert sorted((method.left.vector, method.right.vector))[1] == 16 // dtype.itemsize
    for found, wanted in zip(run(x), expected(model, (x,)), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)


class Shared(nn.Module):
    """Two products read one input, and one reads what is a result."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(ODD, 32), nn.Linear(ODD, 24), nn.Linear(ODD, ODD)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.c(x).relu()
        return self.a(x), self.b(y), y


def test_copies_are_shared() -> None:
    model = Shared().half().requires_grad_(False)
    x = torch.randn(1100, ODD).half()
    run = Emulated(model, (x,), workers=2, chooser=Prefer("pad rows", bool))
    copies = [t.name for s in run.program.body for t in defined(s) if t.name.endswith("_rows")]
    assert sorted(copies) == [
        "p_a_weight_rows",
        "p_b_weight_rows",
        "p_c_weight_rows",
        "relu_rows",
        "x_rows",
    ]
    for found, wanted in zip(run(x), expected(model, (x,)), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)


class Added(nn.Module):
    """What a Scatter makes stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(ODD, 32)

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.linear(torch.zeros_like(x).index_add(0, which, x))


def test_copies_of_what_is_made() -> None:
    model = Added().requires_grad_(False)
    args = (torch.randn(1100, ODD), torch.randperm(1100))
    run = Emulated(model, args, workers=2, chooser=Prefer("pad rows", bool))
    assert "mt::load_unaligned<" in run.source.text
    (found,) = run(*args)
    torch.testing.assert_close(found.double(), expected(model, args)[0], rtol=2e-3, atol=2e-3)


def lowered(model: nn.Module, *shapes: tuple[int, ...]) -> tuple[Program, Program]:
    """Before and after, by the cost model."""
    args = tuple(torch.randn(s).half() for s in shapes)
    captured = capture(model.half(), args)
    program, _ = transform(captured.program, captured.constants, Options())
    context = Context.of(program, CUDA)
    return program, pad_odd_rows(program, CUDA, context)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(768, 50257), (1024, 768)),  # odd columns of the result: rows are whole
        (nn.Linear(845, 845), (1, 845)),  # dot products
        (nn.Linear(848, 845), (1024, 848)),
        (nn.Linear(13, 16), (64, 13)),  # a barrier takes longer
        (
            nn.Linear(1433, 64),
            (21664, 1433),
        ),  # each row is read once: by the product, at any alignment
    ],
)
def test_what_stays(model: nn.Module, shape: tuple[int, ...]) -> None:
    program, after = lowered(model, shape)
    assert after is program


@pytest.mark.parametrize(("rows", "k", "n"), [(1024, 845, 845), (21664, 1433, 1433)])
def test_what_pays(rows: int, k: int, n: int) -> None:
    program, after = lowered(nn.Linear(k, n), (rows, k))
    names = [t.name for s in after.body for t in defined(s)]
    assert names[:2] == ["x_rows", "p_weight_rows"] or names[:2] == ["input_rows", "p_weight_rows"]
    assert len(names) == len(program.body) + 2


def test_only_where_layouts_matter() -> None:
    target = cpu_target(workers=2)
    run = capture(nn.Linear(845, 845), (torch.randn(1024, 845),))
    program, _ = transform(run.program, run.constants, Options())
    assert for_target(program, target)[0] == program


def test_what_reads_no_longer_rows_stays_as_it_is() -> None:
    """The statement itself, so that what was found about its stage is found again."""
    captured = capture(chain().half(), (torch.randn(ROWS, ODD).half(),))
    program, _ = transform(captured.program, captured.constants, Options())
    program, _ = for_target(program, CUDA, chooser=Prefer("pad rows", lambda yes: not yes))
    every = [s for s in statements(program.body) if isinstance(s, Compute)]
    odd = [p for s in every if (p := odd_product(s, CUDA)) is not None]
    padded = pad_rows(program, odd[:1])
    assert padded != program
    before = {t.name: s for s in program.body for t in defined(s)}
    now = {t.name: s for s in padded.body for t in defined(s)}
    longer = {n for n in before if n in now and before[n] != now[n]}
    rest = [s for s in every if s.out.name not in longer and not longer & {x.tensor.name for x in loads(s.body)}]  # fmt: skip
    assert rest
    assert all(now[s.out.name] is s for s in rest)
