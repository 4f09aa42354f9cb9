"""Tensors cropped to what is read of them: backward through layers, under conditions, inside loops; and what stays as it is."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import monotile
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Const, Expr, Load, Select, Tensor, add, const, idx, mul
from monotile.ir.program import Carry, Compute, Loop, Program, compute, statements
from monotile.ir.verify import verify
from monotile.pipeline import transform
from monotile.transform.simplify.crop import crop
from tests.models.accuracy import error, exact

F32 = DType.F32
X = Tensor("x", (8, 64), F32)
SQUARES = Tensor("squares", (8, 64), F32)


def reading(*readers: Compute) -> Program:
    """Of squares of x, whose results are those of `readers`."""
    squares = compute(SQUARES, lambda i, j: mul(Load(X, (i, j)), Load(X, (i, j))))
    body = (squares, *readers)
    return Program((X,), (), body, tuple(s.out for s in readers))


def part(
    name: str, rows: int, columns: int, at: Callable[[Expr, Expr], tuple[Expr, Expr]]
) -> Compute:
    """A Compute of that shape that reads squares at `at`."""
    return compute(Tensor(name, (rows, columns), F32), lambda i, j: Load(SQUARES, at(i, j)))


def made(program: Program) -> dict[str, tuple[int, ...]]:
    """The shape of what each Compute makes, after cropping, which leaves the results as they are."""
    new = crop(program)
    verify(new)
    x = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    for a, b in zip(evaluate(program, {"x": x}), evaluate(new, {"x": x}), strict=True):
        np.testing.assert_array_equal(a, b)
    return {s.out.name: s.out.shape for s in statements(new.body) if isinstance(s, Compute)}


def padded(i: Expr, j: Expr) -> Expr:
    """Row i, with two columns of zeros in front."""
    inside = Binary("ge", j, idx(2))
    return Select(inside, Load(SQUARES, (i, add(j, idx(-2)))), const(0.0, F32))


# What reads the squares, and what is left of them.
READERS: dict[str, tuple[list[Compute], tuple[int, int]]] = {
    "first row": ([part("a", 1, 64, lambda i, j: (idx(0), j))], (1, 64)),
    "behind the start": ([part("a", 8, 4, lambda i, j: (i, add(j, idx(5))))], (8, 4)),
    "two parts": (
        [part("a", 1, 8, lambda i, j: (idx(2), j)), part("b", 1, 8, lambda i, j: (idx(5), add(j, idx(8))))],
        (4, 16),
    ),
    "all": ([part("a", 8, 64, lambda i, j: (i, j)), part("b", 1, 8, lambda i, j: (i, j))], (8, 64)),
    "from the end": ([part("a", 8, 64, lambda i, j: (i, add(mul(j, idx(-1)), idx(63))))], (8, 64)),
    "padding": ([compute(Tensor("a", (8, 34), F32), padded)], (8, 32)),
    "too little to be worth it": ([part("a", 8, 63, lambda i, j: (i, j))], (8, 64)),
    "even again": ([part("a", 8, 1, lambda i, j: (i, idx(3)))], (8, 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", READERS)
def test_what_is_left(case: str) -> None:
    readers, left = READERS[case]
    assert made(reading(*readers))["squares"] == left


def test_nothing_is_made_anew_where_all_is_read() -> None:
    program = reading(*READERS["all"][0])
    assert crop(program) is program


def test_results_stay() -> None:
    program = reading(*READERS["first row"][0])
    whole = Program(program.inputs, (), program.body, (SQUARES, *program.outputs))
    assert crop(whole) is whole


def test_sums_read_all_their_terms() -> None:
    total = compute(
        Tensor("a", (1,), F32),
        lambda i, r: Load(SQUARES, (idx(3), r)),
        reduce=(64,),
        combiner="sum",
    )
    assert made(reading(total))["squares"] == (1, 64)


def test_inside_loops_and_what_they_carry() -> None:
    """A body's own tensors are cropped, what is carried is not."""
    state, new, out = (Tensor(n, (8, 64), F32) for n in ("state", "new", "out"))
    doubled = Tensor("doubled", (8, 64), F32)
    first = compute(Tensor("a", (1, 64), F32), lambda i, j: Load(out, (idx(0), j)))
    body = (
        compute(doubled, lambda i, j: mul(Load(state, (i, j)), Const(2.0, F32))),
        compute(new, lambda i, j: add(Load(doubled, (idx(1), j)), Load(state, (i, j)))),
    )
    loop = Loop(Axis("t", 3), (Carry(X, state, new, out),), (), body)
    shapes = made(Program((X,), (), (loop, first), (first.out,)))
    assert shapes["doubled"] == (1, 64)
    assert shapes["new"] == (8, 64)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 48),
            nn.Linear(48, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = x + torch.softmax(x @ x.transpose(1, 2), -1) @ x
        return mixed + self.down(F.gelu(self.up(self.norm(mixed))))


class Classifier(nn.Module):
    """Three layers, of whose tokens the head takes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(32) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(x))[:, 0])


class Causal(nn.Module):
    """Two convolutions over time, each padded at both ends and cut behind the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(16, 16, 4, padding=3), nn.Conv1d(16, 16, 4, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.first, self.second):
            x = F.silu(conv(x)[..., : x.shape[-1]])
        return x


def transformed(model: nn.Module, *shape: int) -> tuple[Program, list[tuple[int, ...]]]:
    """The Program for an argument of that shape, and the shapes of all that it computes."""
    found = capture(model.eval(), (torch.randn(shape),))
    program, _ = transform(found.program, found.constants, Options())
    return program, [s.out.shape for s in statements(program.body) if isinstance(s, Compute)]


def test_the_last_layer_makes_one_token() -> None:
    """Its second half does, and its norm; the layers before it are rolled as ever."""
    program, shapes = transformed(Classifier(), 2, 9, 32)
    assert {(2, 1, 48), (2, 9, 48)} <= set(shapes)
    assert any(isinstance(s, Loop) and s.axis.extent == 2 for s in program.body)


def test_a_causal_convolution_makes_what_is_kept() -> None:
    _, shapes = transformed(Causal(), 2, 16, 24)
    assert all(24 in shape and 27 not in shape for shape in shapes)


@pytest.mark.parametrize(("model", "shape"), [(Classifier, (2, 9, 32)), (Causal, (2, 16, 24))])
def test_compiled(model: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    made, x = model().eval(), torch.randn(shape)
    fast = monotile.compile(made, (x,), target="cpu", options=Options(cache=False))
    fresh = torch.randn(shape)
    assert error(fast(fresh), exact(made, (fresh,))) < 1e-5
