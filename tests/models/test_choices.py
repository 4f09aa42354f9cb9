"""What was recorded under the cost model, replayed from JSON, gives the same source to the byte."""

import pytest

from bench.zoo import Spec
from monotile.choice.chooser import MODEL, Chooser, Record, Replay
from monotile.choice.spec import from_json, to_json
from monotile.codegen.source import Source
from monotile.config import Options
from monotile.frontends.torch.capture import Captured, capture, export
from monotile.passes.plans import PlanState
from monotile.passes.programs import ProgramState
from monotile.pipeline import lower, to_plan
from monotile.runtime.objects import flatten_objects
from monotile.targets.target import Target
from tests.models.test_given_plans import EMIT, TARGETS
from tests.models.test_zoo import CASES, deep, name

OPTIONS = Options()


def source(captured: Captured, target: Target, chooser: Chooser) -> Source:
    held = frozenset(captured.parameters)
    first = ProgramState(
        captured.program, OPTIONS, target, captured.constants, held, chooser=chooser
    )
    done = lower(first)
    plan = to_plan(PlanState.of(done.program, target, OPTIONS, done.context))
    return EMIT[target.kind](done.program, plan, target, OPTIONS)


@pytest.mark.parametrize("spec", CASES, ids=name)
def test_the_source_of_choices_from_json(spec: Spec) -> None:
    model, call = deep(spec, 2).make()
    captured = capture(export(model, *call, results=flatten_objects))
    for target in TARGETS:
        record = Record()
        expected = source(captured, target, MODEL)
        assert source(captured, target, record) == expected
        replay = Replay(from_json(to_json(record.spec)), otherwise=None)
        assert source(captured, target, replay) == expected
