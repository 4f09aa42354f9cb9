"""From a model to the source of its kernel, as `monotile.compile` goes but for the cache and the build.

What `bench.sources` knows of the compiler's insides is all in here and in `bench/roundtrip.py`.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from monotile.choice.chooser import MODEL, Chooser
from monotile.codegen.source import Source
from monotile.config import Options
from monotile.frontends.torch.capture import Captured, capture
from monotile.frontends.torch.export import Exported, export
from monotile.frontends.torch.orders import in_memory_order
from monotile.ir.verify import verify as verify_program
from monotile.passes.plans import PlanState
from monotile.passes.programs import ProgramState
from monotile.pipeline import lower, to_plan
from monotile.plan.check.structure import verify as verify_plan
from monotile.plan.nodes import Plan
from monotile.plan.records import ON_CHIP
from monotile.runtime.arrange import compose_orders
from monotile.runtime.objects import flatten_objects
from monotile.runtime.reference import Call
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.targets.registry import backend_of
from monotile.targets.target import Target
from monotile.transform.layout.align_axes import Order


@dataclass(frozen=True)
class Made:
    """text: the source. plan: as JSON has it. beside: what a call needs besides the text, by numbers where the Plan has names."""

    text: str
    plan: dict[str, Any]
    beside: list[Any]


@dataclass(frozen=True)
class Compiled:
    """lowered: where the passes from Program to Program end."""

    lowered: ProgramState
    plan: Plan
    source: Source


def to_source(model: torch.nn.Module, call: Call, name: str, chosen: dict[str, Any]) -> Made:
    """For the target `name` with `Options(**chosen)`. Raises what `monotile.compile` does."""
    options = Options(cache=False, **chosen)
    target = target_of(name, options)
    captured, orders = captured_for(target, export(model, *call, results=flatten_objects))
    made = compiled(captured, target, options)
    done, plan, source = made.lowered, made.plan, made.source
    program, constants = done.program, done.constants
    orders |= {n: compose_orders(orders.get(n), order) for n, order in done.orders.items()}

    encoded = json.loads(plan.to_json())
    told = ("functions", "index_bits")  # by the text
    launch = {k: v for k, v in encoded["launch"].items() if k not in told}
    checks = [re.sub(r"\.py:\d+", ".py", message) for message in source.checks]  # whatever the line
    outputs = captured.signature.moved(done.results).outputs
    beside = [
        [source.entry, source.units, checks, launch],
        [[t.shape, t.dtype.name] for t in (*program.inputs, *program.results)],
        [_digest(constants[n]) if n in constants else "" for n in plan.weights],
        [orders.get(n) for n in (*plan.inputs, *plan.weights)],
        [[getattr(x, "index", None), getattr(x, "row", None)] for x in outputs],
    ]
    return Made(source.text, encoded, beside)


def captured_for(target: Target, exported: Exported) -> tuple[Captured, dict[str, Order]]:
    """What is captured for such a target, and the orders in memory of what is not read row by row."""
    captured = capture(exported)
    return in_memory_order(captured, exported) if target.has.any_order else (captured, {})


def lowered(
    captured: Captured, target: Target, options: Options, chooser: Chooser = MODEL
) -> ProgramState:
    """Through all passes from Program to Program."""
    held = frozenset(captured.parameters)
    return lower(
        ProgramState(captured.program, options, target, captured.constants, held, chooser=chooser)
    )


def compiled(
    captured: Captured, target: Target, options: Options, chooser: Chooser = MODEL
) -> Compiled:
    """All the way to the source, checked on it."""
    done, backend = lowered(captured, target, options, chooser), backend_of(target)
    verify_program(done.program)
    plan = to_plan(PlanState.of(done.program, target, options, done.context))
    plan, source = backend.settle(done.program, plan, target, options)
    verify_plan(plan, done.program, target)
    return Compiled(done, plan, source)


def target_of(name: str, options: Options) -> Target:
    """The figures of one machine, whatever this one is."""
    if name == "cpu":
        target = cpu_target(workers=2, l2_bytes=2 << 20, vector_bytes=64)
    else:
        target = cuda_target(name.removeprefix("cuda:"))
        if options.profile:
            target = msgspec.structs.replace(target, shared_bytes=target.shared_bytes - ON_CHIP)
    return msgspec.structs.replace(target, workers=options.workers or target.workers)


def _digest(x: Any) -> str:
    return f"{x.dtype} {x.shape} {hashlib.sha256(x.tobytes()).hexdigest()}"
