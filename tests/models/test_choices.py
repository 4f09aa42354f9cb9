"""What was recorded under the cost model, replayed from JSON, gives the same Plan and the same source to the byte."""

import pytest

from bench.roundtrip import differ, replay
from bench.to_source import compiled
from bench.zoo import Spec
from monotile.choice.chooser import Record
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.runtime.objects import flatten_objects
from tests.models.test_given_plans import OPTIONS, TARGETS
from tests.models.test_zoo import CASES, deep, name


@pytest.mark.parametrize("spec", CASES, ids=name)
def test_the_source_of_choices_from_json(spec: Spec) -> None:
    model, call = deep(spec, 2).make()
    captured = capture(export(model, *call, results=flatten_objects))
    for target in TARGETS:
        record = Record()
        expected = compiled(captured, target, OPTIONS)
        assert not differ(expected, compiled(captured, target, OPTIONS, record))
        assert not differ(expected, replay(record.spec, captured, target, OPTIONS))
