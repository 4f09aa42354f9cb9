"""A compilation can be written down: its Plan, and what was chosen on the way, each through JSON, give the same source to the byte."""

import pytest

from bench.roundtrip import differ, replay, with_plan
from bench.to_source import compiled
from bench.zoo import Spec
from monotile.choice.chooser import Record
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.runtime.objects import flatten_objects
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from tests.conftest import wide
from tests.models.test_zoo import CASES, deep, name

TARGETS = (cpu_target(workers=4), cuda_target("sm_80"), cuda_target("sm_90a"))
OPTIONS = Options()
KINDS = ("gpt2",)


@pytest.mark.wide
@pytest.mark.parametrize("spec", [s if name(s) in KINDS else wide(s) for s in CASES], ids=name)
def test_the_source_of_choices_and_of_a_plan_from_json(spec: Spec) -> None:
    model, call = deep(spec, 2).make()
    captured = capture(export(model, *call, results=flatten_objects))
    for target in TARGETS:
        record = Record()
        made = compiled(captured, target, OPTIONS)
        assert not differ(made, compiled(captured, target, OPTIONS, record))
        chosen = replay(record.spec, captured, target, OPTIONS)
        assert not differ(made, chosen)
        again = chosen.lowered.program
        assert not differ(made, with_plan(made.plan.to_json(), made, again, target, OPTIONS))
