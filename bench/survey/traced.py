"""A small model through torch.compile(backend="monotile"), asked with sizes as they come, beside PyTorch in float64."""

import copy
import time
from typing import Any

import msgspec
import torch
from torch import fx

from bench.survey.answers import judged, made, moved
from bench.survey.ranged import SIZES, resized
from bench.survey.rows import Row, attempted, words
from monotile import Options
from monotile.dynamo.graph import Graph, Settings

_CALLS = 4  # the first compiles each graph, the others let Dynamo open what changes


def traced(name: str, head: str, target: str, dtype: torch.dtype) -> Row:
    """head: an Auto class of transformers. A right answer that is not one kernel a call says how many there are, and what PyTorch ran."""
    torch.manual_seed(0)
    try:
        model, given = made(name, head)
        calls = [resized(given, *size) for size in SIZES[:_CALLS]]
        model, calls = moved(model, calls, target, dtype)
    except Exception as reason:
        return Row(name=name, outcome="not built", said=words(reason))
    graphs: list[Graph] = []

    def backend(module: fx.GraphModule, _: Any) -> Graph:
        graphs.append(Graph(module, Settings(target, Options(cache=False))))
        return graphs[-1]

    def run() -> tuple[list[Any], float]:
        start = time.perf_counter()
        with torch.no_grad():
            fast = torch.compile(copy.deepcopy(model), backend=backend)
            found = [fast(**call) for call in calls]
        return found, time.perf_counter() - start

    outcome = attempted(name, run)
    if isinstance(outcome, Row):
        return outcome
    row = judged(name, model, calls, *outcome)
    return msgspec.structs.replace(row, said="; ".join([row.said, *_parts(graphs)]).strip("; "))


def _parts(graphs: list[Graph]) -> list[str]:
    """What is to be said of graphs that are not one kernel each."""
    kernels, reasons = [g.kernels for g in graphs], {r: None for g in graphs for r in g.reasons}
    whole = all(k == 1 for k in kernels) and not reasons
    return list(reasons) if whole else [f"kernels {kernels}", *reasons]
