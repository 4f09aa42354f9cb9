"""Runs a graph on a target, as a user would; the emulator runs the CUDA source on the host."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import monotile
from monotile.codegen import cuda
from monotile.frontend.capture import Captured, capture
from monotile.frontend.types import to_numpy
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.ir.signature import AliasLeaf, OutputLeaf, TensorLeaf
from monotile.ir.verify import verify as verify_program
from monotile.runtime.tensors import from_numpy
from monotile.schedule.schedule import schedule
from monotile.schedule.split import split_reductions
from monotile.schedule.verify import verify as verify_plan
from monotile.target.target import cuda_target
from monotile.transform.pipeline import transform
from tests.codegen.emulate import emulate
from tests.fuzz.graph import Graph, Network, arguments

Results = list[torch.Tensor]
OPTIONS = monotile.Options(cache=False)


def on_cpu(graph: Graph) -> Results:
    return _called(graph, "cpu", torch.device("cpu"))


def on_gpu(graph: Graph) -> Results:
    return _called(graph, "cuda", torch.device("cuda"))


def _called(graph: Graph, target: str, device: torch.device) -> Results:
    """Twice, as a second call finds the workspace as the first left it; arguments must stay as they are."""
    model = Network(graph).eval().to(device)
    given = tuple(x.to(device) for x in arguments(graph))
    before = [x.clone() for x in given]
    fast = monotile.compile(model, given, target=target, options=OPTIONS)
    first, again = fast(*given), fast(*given)
    for x, y in zip((*given, *first), (*before, *again), strict=True):
        if not torch.equal(_bits(x), _bits(y)):
            raise AssertionError(
                "a call changed its arguments, or a second one gave something else"
            )
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
    program = split_reductions(program, target)
    verify_program(program)
    plan = schedule(program, target, options)
    verify_plan(plan, program, target)
    source = cuda.emit(program, plan, target, options)
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


def _results(
    captured: Captured, graph: Graph, outputs: tuple[np.ndarray[Any, Any], ...]
) -> Results:
    given = arguments(graph)
    found: Results = []
    for leaf in captured.signature.outputs:
        match leaf:
            case OutputLeaf(index):
                found.append(from_numpy(outputs[index]))
            case AliasLeaf(number):
                found.append(given[number])
            case _:
                raise AssertionError("a network returns tensors")
    return found


TARGETS: Mapping[str, Callable[[Graph], Results]] = {
    "cpu": on_cpu,
    "cuda": on_gpu,
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
        made.append(("split", split_reductions(program, cuda_target("sm_90a"))))
    values = _values(captured, graph, captured.constants) | dict(constants)

    def result(p: Program) -> Callable[[], Results]:
        def go() -> Results:
            verify_program(p)
            return _results(captured, graph, evaluate(p, values))

        return go

    return [(name, result(p)) for name, p in made]
