"""Stages with equal code share one function."""

import re
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
from msgspec.structs import replace

from monotile.codegen.functions import IN_FRONT, Functions
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Expr, Load, Tensor, add, mul
from monotile.ir.program import Compute, Program, Weight, compute
from monotile.pipeline import schedule
from monotile.targets.cuda import emit as cuda_emit
from monotile.targets.cuda.build import build
from monotile.targets.cuda.emit import emit, settle
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cpu_run import Compiled, random_values
from tests.codegen.emulate import COMPILER, emulate

SIZE = 96
OPTIONS = Options(cache=False, workers=3)


def layers(count: int) -> Program:
    """Products one after the other, written out."""
    x = h = Tensor("x", (SIZE, SIZE), DType.F32)
    weights = [Tensor(f"w{k}", (SIZE, SIZE), DType.F32) for k in range(count)]
    body: list[Compute] = []
    for k, w in enumerate(weights):
        out = Tensor(f"h{k}", (SIZE, SIZE), DType.F32)
        body.append(compute(out, _product(h, w), reduce=(SIZE,), combiner="sum"))
        h = out
    return Program((x,), tuple(Weight(w, (w.name,)) for w in weights), tuple(body), (h,))


def _product(h: Tensor, w: Tensor) -> Callable[..., Expr]:
    return lambda i, j, r: mul(Load(h, (r, i)), Load(w, (r, j)))


def functions_and_calls(source: str) -> tuple[int, int]:
    """Of stages."""
    lines = [line for line in source.splitlines() if " stage_" in line]
    functions = sum(line.startswith("static") for line in lines)
    return functions, len(lines) - functions


def test_on_the_cpu() -> None:
    program = layers(6)
    compiled = Compiled(program)
    # The first reads an input, which never changes.
    assert functions_and_calls(compiled.source.text) == (2, 3)
    values = random_values(program)
    (found,), (wanted,) = compiled(values), evaluate(program, values)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * float(np.abs(wanted).max()))


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_gpu() -> None:
    program = layers(6)
    target = cuda_target("sm_80", workers=3)
    plan = schedule(program, target, OPTIONS)
    source = emit(program, plan, target, OPTIONS)
    functions, calls = functions_and_calls(source.text)
    assert functions < calls
    called = re.findall(r"__noinline__ void (\w+)\(", source.text)
    assert called
    for name in called:  # nothing is passed in registers of a whole warp: see `in_lanes`
        (given,) = re.findall(rf"^  {name}\((.*)\);$", source.text, re.MULTILINE)
        assert all(x == "p" or x.startswith("mt::ptx::in_lanes(") for x in given.split(", "))
    values = random_values(program)
    (found,) = emulate(program, plan, source, values)
    (wanted,) = evaluate(program, values)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * float(np.abs(wanted).max()))


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_parts_are_a_text_as_well() -> None:
    program = layers(6)
    target = cuda_target("sm_80", workers=3)
    plan = schedule(program, target, OPTIONS)
    plan = replace(plan, launch=replace(plan.launch, functions="separate"))
    source = emit(program, plan, target, OPTIONS)
    assert source.units == 2
    values = random_values(program)
    (found,) = emulate(program, plan, source, values)
    (wanted,) = evaluate(program, values)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * float(np.abs(wanted).max()))


def test_stages_on_other_workers_share_a_function() -> None:
    functions = Functions(lean=True)
    for name, in_front in (("a", 3), ("b", 5)):
        functions.add(name, f"{{ x({IN_FRONT}); }}", {"p": "P", "x": "X"}, (), (), in_front)
        functions.add(f"{name}_alike", f"{{ {IN_FRONT}; }}", {}, (), (), 7)
    shared, alike = functions
    assert list(shared.declarations) == ["X x", "const idx in_front"]
    assert [functions.call(n)[1] for n in "ab"] == [("x", "3"), ("x", "5")]
    assert (alike.text, functions.call("b_alike")) == ("{ 7; }", (alike, ()))


def test_a_long_kernel_calls_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    program = layers(3)
    target = cuda_target("sm_90a")
    plan = schedule(program, target, OPTIONS)
    monkeypatch.setattr(cuda_emit, "WHOLE", 1000)
    long, source = settle(program, plan, target, OPTIONS)
    assert (long.launch.functions, source.units) == ("separate", 2)
    assert source == emit(program, long, target, OPTIONS)


def test_what_reads_more_than_registers_hold_is_no_call() -> None:
    inputs = tuple(Tensor(f"x{k}", (SIZE,), DType.F32) for k in range(140))
    out = Tensor("out", (SIZE,), DType.F32)
    total = compute(out, lambda i: reduce(add, (Load(x, (i,)) for x in inputs)))
    program = Program(inputs, (), (total,), (out,))
    target = cuda_target("sm_90a")
    plan = schedule(program, target, OPTIONS)
    launch = replace(plan.launch, functions="separate")
    source = emit(program, replace(plan, launch=launch), target, OPTIONS)
    assert build(source.text, target, OPTIONS, source.units).image


def test_functions_that_are_called_and_parts_of_the_kernel() -> None:
    program = layers(3)
    target = cuda_target("sm_90a")
    plan = schedule(program, target, OPTIONS)
    few, source = settle(program, plan, target, OPTIONS)
    assert few.launch.functions == "inlined"
    assert "__forceinline__ void stage_" in source.text
    assert source == emit(program, few, target, OPTIONS)
    launch = replace(plan.launch, functions="separate")
    more = emit(program, replace(plan, launch=launch), target, OPTIONS)
    called = re.findall(r"__noinline__ void (stage_\w+)\(", more.text)
    assert called
    assert not re.findall(r"__forceinline__ void stage_", more.text)
    assert more.text.count("recompute(p.workspace)") >= len(set(called))
    assert (source.units, more.units) == (0, 2)
    built = build(more.text, target, OPTIONS, more.units)
    assert built.image
    assert "check_timeout" not in built.ptx  # a call, which would serialise the wgmma of its caller
