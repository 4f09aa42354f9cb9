"""The Plan says how wide indices are; a kernel whose indices would not fit is never written."""

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import monotile
from monotile.config import Options
from monotile.errors import PlanError, VerificationError
from monotile.ir.dtype import DType
from monotile.ir.expr import Load, Tensor, add
from monotile.ir.program import Program, compute
from monotile.kernels.registry import read_plan
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.plan.printer import show
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.targets.registry import backend_of
from monotile.targets.target import Target

OPTIONS = Options(cache=False)
TARGETS = (cpu_target(workers=2), cuda_target("sm_90a"))
WIDE = {"cpu": "#define MT_WIDE", "cuda": "using idx = int64_t;"}


def doubled(rows: int) -> Program:
    x, y = (Tensor(n, (rows, 1 << 16), DType.F32) for n in "xy")
    made = compute(y, lambda i, j: add(Load(x, (i, j)), Load(x, (i, j))))
    return Program((x,), (), (made,), (y,))


def with_bits(plan: Plan, bits: int) -> Plan:
    return replace(plan, launch=replace(plan.launch, index_bits=bits))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
@pytest.mark.parametrize(("rows", "bits"), [(1 << 14, 32), (1 << 16, 64)])
def test_as_many_bits_as_the_indices_need(target: Target, rows: int, bits: int) -> None:
    program, backend = doubled(rows), backend_of(target)
    plan, source = backend.settle(program, schedule(program, target, OPTIONS), target, OPTIONS)
    assert plan.launch.index_bits == bits
    assert f"{bits}-bit indices" in show(plan)
    verify(plan, program, target)
    assert backend.emit(program, plan, target, OPTIONS) == source
    assert (WIDE[target.kind] in source.text) == (bits == 64)
    read = read_plan(plan.to_json())
    assert backend.emit(program, read, target, OPTIONS) == source
    assert backend.settle(program, with_bits(plan, 64), target, OPTIONS) == (plan, source)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
def test_too_few_bits(target: Target) -> None:
    program = doubled(1 << 16)
    plan = with_bits(schedule(program, target, OPTIONS), 32)
    with pytest.raises(PlanError, match="32 bits"):
        backend_of(target).emit(program, plan, target, OPTIONS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
def test_more_bits_than_needed(target: Target) -> None:
    program = doubled(8)
    plan = with_bits(schedule(program, target, OPTIONS), 64)
    verify(plan, program, target)
    assert WIDE[target.kind] in backend_of(target).emit(program, plan, target, OPTIONS).text


def test_widths_that_there_are_not() -> None:
    program, target = doubled(8), TARGETS[0]
    plan = schedule(program, target, OPTIONS)
    with pytest.raises(VerificationError, match="indices of 16 bits"):
        verify(with_bits(plan, 16), program, target)
    with pytest.raises(msgspec.ValidationError):
        read_plan(with_bits(plan, 16).to_json())


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def test_a_given_plan_with_too_few() -> None:
    model, args = Doubled().eval(), (torch.zeros(1).expand(1 << 16, 1 << 16),)  # never run
    plan = monotile.compile(model, args, target="cpu", options=OPTIONS).plan
    assert plan.launch.index_bits == 64
    with pytest.raises(PlanError, match="32 bits"):
        monotile.compile(model, args, target="cpu", options=OPTIONS, plan=with_bits(plan, 32))
