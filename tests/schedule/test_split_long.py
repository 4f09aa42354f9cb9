"""Long reductions to few values, in parts for all workers."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import monotile
from monotile.choice.chooser import Prefer
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Cast, Load, Tensor, add
from monotile.ir.program import Compute, Program, compute, statements
from monotile.ir.verify import verify
from monotile.kernels.draft import Context
from monotile.pipeline import transform
from monotile.plan.walk import stages_in
from monotile.schedule.parts import Parts, combined, partial
from monotile.schedule.split_long import split_long_reductions
from monotile.targets.cpu.target import cpu_target
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.schedule import programs as p

SPLIT = Prefer("long", lambda value: value is not None)  # where it may be
CASES = [(nn.GroupNorm(1, 64), (1, 64, 640)), (nn.GroupNorm(4, 32), (2, 32, 60, 60))]


class Call(nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


def program_of(model: nn.Module, *shape: int) -> tuple[Program, dict[str, np.ndarray]]:
    captured = capture(model.eval(), (torch.randn(shape),))
    program, constants = transform(captured.program, captured.constants, Options())
    held = {n: to_numpy(t) for n, t in captured.parameters.items()}
    return program, held | dict(constants)


def parts(program: Program) -> dict[str, tuple[int, ...]]:
    every = (s for s in statements(program.body) if isinstance(s, Compute))
    return {s.out.name: s.out.shape for s in every if s.out.name.endswith("_parts")}


def split(program: Program) -> Program:
    after = split_long_reductions(program, p.H100, Context.of(program, p.H100, SPLIT))
    verify(after)
    return after


def agree(a: Program, b: Program, values: dict[str, np.ndarray], *shape: int) -> None:
    """With a mean far from zero, which sums of squares would lose."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 100
    values = values | {a.inputs[0].name: x}
    for one, other in zip(evaluate(a, values), evaluate(b, values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("model", "shape"), CASES)
def test_both_moments_in_one_pass(model: nn.Module, shape: tuple[int, ...]) -> None:
    program, held = program_of(model, *shape)
    after = split(program)
    (sums, squares) = parts(after).values()
    assert sums == squares
    assert np.prod(sums) >= p.H100.workers / 3
    agree(program, after, held, *shape)


def test_a_variance_written_out() -> None:
    program, held = program_of(
        Call(lambda x: ((x - x.mean((1, 2), keepdim=True)) ** 2).mean((1, 2))), 2, 64, 1024
    )
    after = split(program)
    assert len(parts(after)) == 2
    agree(program, after, held, 2, 64, 1024)


def test_a_variance_whose_dimensions_are_kept() -> None:
    """It has the shape of its mean, though what is made of it has dimensions of one place more (EvoNorm)."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        groups = x.view(2, 4, -1, 1024)
        return (groups / groups.var((2, 3), keepdim=True).add(1e-5).sqrt()).view(x.shape)

    program, held = program_of(Call(scaled), 2, 64, 1024)
    after = split(program)
    (sums, squares) = parts(after).values()
    assert sums == squares
    agree(program, after, held, 2, 64, 1024)


@pytest.mark.parametrize("reduce", [torch.amax, torch.sum])
def test_other_reductions(reduce: Callable[..., torch.Tensor]) -> None:
    program, held = program_of(Call(lambda x: reduce(x, (1, 2))), 3, 128, 960)
    after = split(program)
    assert len(parts(after)) == 1
    agree(program, after, held, 3, 128, 960)


@pytest.mark.parametrize("beside", [None, 0])
def test_a_kept_axis(beside: int | None) -> None:
    """Its places are parts as well, whether an expression or a reduction combines them."""
    program, held = program_of(Call(lambda x: x.sum((1, 2))), 3, 4, 60)
    (c,) = (s for s in program.body if isinstance(s, Compute) and s.reduce)
    for count in (2, 30):
        first = partial(c, Parts(1, count, beside))
        assert first.out.shape == ((count, 3) if beside is None else (count, 3, 4))
        body = tuple(x for s in program.body for x in ((first, combined(c, first.out)) if s is c else (s,)))  # fmt: skip
        after = Program(program.inputs, program.weights, body, program.outputs)
        verify(after)
        agree(program, after, held, 3, 4, 60)


def test_by_cost() -> None:
    for shape, number in (((2, 64, 640), 0), ((1, 512, 2000), 1)):
        program, _ = program_of(Call(lambda x: x.sum((1, 2))), *shape)
        assert len(parts(split_long_reductions(program, p.H100, Context.of(program, p.H100)))) == number  # fmt: skip


def test_what_has_enough_results_or_few_terms_stays() -> None:
    for shape in ((128, 64, 64), (1, 16, 64)):
        program, _ = program_of(Call(lambda x: x.sum((1, 2))), *shape)
        assert split(program) is program
    program, _ = program_of(*[CASES[0][0], *CASES[0][1]])
    cpu = cpu_target(workers=2)
    assert split_long_reductions(program, cpu, Context.of(program, cpu)) is program


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize(("model", "shape"), [CASES[0]])
def test_emulated(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape) + 100
    run = Emulated(nn.Sequential(nn.ReLU(), model), (x,), workers=8, chooser=SPLIT)
    assert len(parts(run.program)) == 2
    (found,) = run(x)
    torch.testing.assert_close(
        found.double(), model.double()(x.double().relu()), rtol=1e-4, atol=1e-4
    )
    model.float()


def test_a_sum_of_what_nothing_is_read_for_stays() -> None:
    """Of places alone, as of a mask that is known: DETR had one."""
    x, y = Tensor("x", (4,), DType.F32), Tensor("y", (4,), DType.F32)
    total = Tensor("total", (4,), DType.F32)
    places = compute(total, lambda i, r: Cast(r, DType.F32), reduce=(1 << 20,), combiner="sum")
    shifted = compute(y, lambda i: add(Load(x, (i,)), Load(total, (i,))))
    assert not parts(split(Program((x,), (), (places, shifted), (y,))))


def test_columns_are_as_many_results_as_sectors() -> None:
    """Norms of 80 channels over 65,536 places, as in transposed attention: five sectors of memory, so five tasks."""
    norms = Call(lambda x: x.half().float().square().sum(1))
    program, _ = program_of(norms, 1, 1 << 16, 80)
    found = parts(split_long_reductions(program, p.H100, Context.of(program, p.H100)))
    (shape,) = found.values()
    assert shape[0] * 80 // 16 >= p.H100.workers // 2


def test_norms_of_columns_on_the_emulator() -> None:
    model, x = Call(lambda x: nn.functional.normalize(x, dim=1)), torch.randn(2, 4096, 40)
    (mine,) = Emulated(model, (x.half(),))(x.half())
    torch.testing.assert_close(mine.float(), model(x), rtol=1e-2, atol=1e-3)


def test_groups_of_channels_on_the_cpu() -> None:
    """Vectors run along the channels of all groups; each group by itself would be a piece of each line."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(3, 64, 1), nn.GroupNorm(8, 64), nn.Conv2d(64, 8, 3, padding=1))
    x = torch.randn(2, 3, 128, 130) + 20
    run = monotile.compile(model.eval(), (x,), target="cpu", options=Options(cache=False))
    found = {n for n in run.plan.places if n.endswith("_parts")}
    assert len(found) == 2
    steps = [s for stage in stages_in(run.plan.body) for s in stage.steps if found & {*s.computes}]
    assert all(re.search(r"vectors along \d+ outputs", s.method.describe()) for s in steps)
    with torch.no_grad():
        right = model.double()(x.double())
        model.float()
        torch.testing.assert_close(run(x).double(), right, rtol=1e-4, atol=1e-5)
