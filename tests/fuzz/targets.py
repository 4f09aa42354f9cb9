"""Runs a graph on a target, as a user would; the emulator runs the CUDA source on the host.

Each gives the graph's outputs, then what its leaves hold after the call.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import torch

import monotile
from monotile.frontends.torch.capture import Captured, capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.ir.signature import AliasLeaf, OutputLeaf, TensorLeaf
from monotile.ir.verify import verify as verify_program
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify as verify_plan
from monotile.runtime.tensors import from_numpy
from monotile.targets.cuda import emit as cuda
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import emulate
from tests.fuzz.graph import Graph, Network, arguments

Results = list[torch.Tensor]
OPTIONS = monotile.Options(cache=False, tf32=False)


def on(target: str, *, arranged: bool = False) -> Callable[[Graph], Results]:
    """A call on this machine's target of that name. arranged: parameters are as the kernel reads them."""
    options = msgspec.structs.replace(OPTIONS, arrange_parameters=arranged)
    return lambda graph: _called(graph, target, torch.device(target), options)


def _called(graph: Graph, target: str, device: torch.device, options: monotile.Options) -> Results:
    """Twice, as a second call finds the workspace as the first left it."""
    model = Network(graph).eval().to(device)
    given = tuple(x.to(device) for x in arguments(graph))
    held = (*given, *model.buffers())
    before = [x.clone() for x in held]
    fast = monotile.compile(model, given, target=target, options=options)

    def call() -> Results:
        for x, y in zip(held, before, strict=True):
            x.copy_(y)
        found = fast(*given)
        own, buffers = iter(given), dict(model.named_buffers())
        leaves = [buffers[n.name] if n.is_parameter else next(own) for n in graph.leaves]
        return [x.clone() for x in (*found, *leaves)]

    first, again = call(), call()
    if not all(torch.equal(_bits(x), _bits(y)) for x, y in zip(first, again, strict=True)):
        raise AssertionError("a second call gave something else")
    return [x.cpu() for x in first]


def _bits(x: torch.Tensor) -> torch.Tensor:
    """With NaN equal to itself."""
    return torch.nan_to_num(x.double(), nan=1.25e300)


def emulated(graph: Graph, workers: int = 3, seed: int = 0) -> Results:
    """The CUDA kernel for sm_90a on the emulator; asynchronous copies late or early, threads in an order by `seed`."""
    captured = capture(Network(graph).eval(), arguments(graph))
    options = monotile.Options(workers=workers)
    target = cuda_target("sm_90a")
    program, constants = transform(captured.program, captured.constants, options, lambda *_: None)
    program, context = for_target(program, target)
    verify_program(program)
    plan = schedule(program, target, options, context)
    plan, source = cuda.settle(program, plan, target, options)
    verify_plan(plan, program, target)
    values = _values(captured, graph, constants)
    found = emulate(program, plan, source, values, late=seed % 2 == 0, seed=seed)
    return _results(captured, graph, found)


def _values(
    captured: Captured, graph: Graph, constants: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    values = {n: to_numpy(x) for n, x in captured.parameters.items()} | dict(constants)
    for x, leaf in zip(arguments(graph), captured.signature.inputs, strict=True):
        if isinstance(leaf, TensorLeaf):
            values[leaf.tensor.name] = to_numpy(x)
    return values


def _results(captured: Captured, graph: Graph, made: tuple[np.ndarray[Any, Any], ...]) -> Results:
    """made: the Program's outputs, the new values of its states among them."""
    program, inputs = captured.program, captured.signature.inputs
    states = dict(zip(program.states, made[len(program.results) :], strict=True))
    given = iter(inputs)
    leaves: Results = []
    for leaf in graph.leaves:
        found = leaf.name if leaf.is_parameter else next(given)
        name = found.tensor.name if isinstance(found, TensorLeaf) else str(found)
        leaves.append(from_numpy(states[name]) if name in states else leaf.value())
    arguments_now = [
        x for x, leaf in zip(leaves, graph.leaves, strict=True) if not leaf.is_parameter
    ]
    results: Results = []
    for result in captured.signature.outputs:
        match result:
            case OutputLeaf(index):
                results.append(from_numpy(made[index]))
            case AliasLeaf(number):
                results.append(arguments_now[number])
            case _:
                raise AssertionError("a network returns tensors")
    return [*results, *leaves]


TARGETS: Mapping[str, Callable[[Graph], Results]] = {
    "cpu": on("cpu"),
    "cpu-arranged": on("cpu", arranged=True),
    "cuda": on("cuda"),
    "cuda-arranged": on("cuda", arranged=True),
    "emulator": emulated,
}


def stages(graph: Graph, cuda_like: bool) -> list[tuple[str, Callable[[], Results]]]:
    """What each step of the compiler made of the graph, by the evaluator: where a wrong answer comes from."""
    captured = capture(Network(graph).eval(), arguments(graph))
    made: list[tuple[str, Program]] = [("capture", captured.program)]
    program, constants = transform(
        captured.program, captured.constants, OPTIONS, lambda name, p: made.append((name, p))
    )
    if cuda_like:
        for_target(program, cuda_target("sm_90a"), lambda name, p: made.append((name, p)))
    values = _values(captured, graph, captured.constants) | dict(constants)

    def result(p: Program) -> Callable[[], Results]:
        def go() -> Results:
            verify_program(p)
            return _results(captured, graph, evaluate(p, values))

        return go

    return [(name, result(p)) for name, p in made]
