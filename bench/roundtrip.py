"""Whether a compilation can be written down: its Plan, and what was chosen on the way, each through JSON, give the same source to the byte."""

from typing import Any

import torch

from bench.to_source import Compiled, captured_for, compiled, target_of
from monotile.choice.chooser import Record, Replay
from monotile.choice.spec import Spec, from_json, to_json
from monotile.config import Options
from monotile.frontends.torch.capture import Captured
from monotile.frontends.torch.export import export
from monotile.ir.program import Program
from monotile.kernels.registry import read_plan
from monotile.plan.check.given import check_given
from monotile.runtime.objects import flatten_objects
from monotile.runtime.reference import Call
from monotile.targets.registry import backend_of
from monotile.targets.target import Target


def differences(model: torch.nn.Module, call: Call, name: str, chosen: dict[str, Any]) -> list[str]:
    """What differs, or fails, in words, for the target `name` with `Options(**chosen)`. Raises what `monotile.compile` does."""
    options = Options(cache=False, **chosen)
    target = target_of(name, options)
    captured, _ = captured_for(target, export(model, *call, results=flatten_objects))
    made = compiled(captured, target, options)
    found, program = list[str](), made.lowered.program
    try:
        record = Record()
        recorded = compiled(captured, target, options, record)
        found += [f"CHOICES that are recorded lead to another {w}" for w in differ(made, recorded)]
        replayed = replay(record.spec, captured, target, options)
        found += [f"CHOICES lead to another {what}" for what in differ(made, replayed)]
        program = replayed.lowered.program
    except Exception as problem:
        found.append(f"CHOICES cannot be recorded or replayed, {_words(problem)}")
    try:
        given = with_plan(made.plan.to_json(), made, program, target, options)
        found += [f"PLAN from JSON leads to another {what}" for what in differ(made, given)]
    except Exception as problem:
        found.append(f"PLAN cannot be used from JSON, {_words(problem)}")
    return found


def replay(spec: Spec, captured: Captured, target: Target, options: Options) -> Compiled:
    """What was chosen says everything: there is nobody else to ask."""
    return compiled(captured, target, options, Replay(from_json(to_json(spec)), otherwise=None))


def with_plan(
    text: str, made: Compiled, program: Program, target: Target, options: Options
) -> Compiled:
    """The same with the Plan `text`, and `program` as it was lowered another time."""
    plan = read_plan(text)
    check_given(plan, program, target)
    source = backend_of(target).emit(program, plan, target, options)
    return Compiled(made.lowered, plan, source)


def differ(one: Compiled, other: Compiled) -> list[str]:
    """What is not the same of two compilations of one model."""
    pairs = {
        "Plan": (one.plan.to_json(), other.plan.to_json()),
        "source": (one.source, other.source),
    }
    return [what for what, (a, b) in pairs.items() if a != b]


def _words(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:300]}"
