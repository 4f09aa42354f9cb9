"""A Plan that went through JSON gives the same source, to the byte: the Plan says everything."""

import pytest

from bench.zoo import Spec
from monotile.config import Options
from monotile.frontends.torch.capture import capture, export
from monotile.kernels.registry import read_plan
from monotile.passes.plans import PlanState
from monotile.passes.programs import ProgramState
from monotile.pipeline import lower, to_plan
from monotile.plan.check.given import check_given
from monotile.runtime.objects import flatten_objects
from monotile.targets.cpu import emit as cpu
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda import emit as cuda
from monotile.targets.cuda.target import cuda_target
from tests.models.test_zoo import CASES, deep, name

TARGETS = (cpu_target(workers=4), cuda_target("sm_80"), cuda_target("sm_90a"))
EMIT = {"cpu": cpu.emit, "cuda": cuda.emit}


@pytest.mark.parametrize("spec", CASES, ids=name)
def test_the_source_of_a_plan_from_json(spec: Spec) -> None:
    model, call = deep(spec, 3).make()
    captured = capture(export(model, *call, results=flatten_objects))
    options = Options()
    for target in TARGETS:
        held = frozenset(captured.parameters)
        first = ProgramState(captured.program, options, target, captured.constants, held)
        done = lower(first)
        plan = to_plan(PlanState.of(done.program, target, options, done.context))

        again = lower(first).program
        read = read_plan(plan.to_json())
        check_given(read, again, target)
        emit = EMIT[target.kind]
        source, same = emit(done.program, plan, target, options), emit(again, read, target, options)
        assert same == source
