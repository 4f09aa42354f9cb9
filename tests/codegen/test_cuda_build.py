"""NVRTC takes every generated kernel, for each architecture, with nothing of the toolkit's around."""

import pytest

from monotile.config import Options
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.targets.cuda.build import build
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cuda_programs import every

PROGRAMS = every()
OPTIONS = Options(cache=False)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_builds(name: str, architecture: str) -> None:
    program, target = PROGRAMS[name], cuda_target(architecture)
    plan = schedule(program, target, OPTIONS)
    verify(plan, program, target)
    source = emit(program, plan, target, OPTIONS)
    binary = build(source.text, target, OPTIONS)
    assert binary.image
    assert "error" not in binary.log
    assert "warning" not in binary.log, binary.log


def test_too_many_pointers_for_the_parameters() -> None:
    program = PROGRAMS["recurrence_f32"]
    few = cuda_target("sm_80")
    plan = schedule(program, few, OPTIONS)
    by_value = emit(program, plan, few, OPTIONS).text
    assert "void* pointers[5];" in by_value
    tiny = type(few)(
        **{f: getattr(few, f) for f in few.__struct_fields__} | {"parameter_bytes": 40}
    )
    in_memory = emit(program, plan, tiny, OPTIONS).text
    assert "void* const* pointers;" in in_memory
    assert build(in_memory, few, OPTIONS).image
