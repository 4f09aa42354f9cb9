"""Makes a failing graph small: fewer outputs, values replaced by arguments, statements left out."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tests.fuzz.builder import NAMES
from tests.fuzz.graph import Graph, Leaf, defined, names, renamed
from tests.fuzz.runs import Rejected, Runs, run

Fails = Callable[[Graph], bool]


def shrink(graph: Graph, fails: Fails, budget: int = 250) -> Graph:
    """A smaller graph that fails as well; `fails` is asked `budget` times at most."""
    left = budget
    found = True
    while found:
        found = False
        try:
            runs = run(graph)
        except Rejected:
            return graph
        for candidate in _candidates(graph, runs):
            if left == 0:
                return graph
            left -= 1
            if fails(candidate):
                graph, found = candidate, True
                break
    return graph


def _candidates(graph: Graph, runs: Runs) -> Iterator[Graph]:
    """Smaller graphs, the boldest steps first."""
    seen = {graph}
    for candidate in (
        *_outputs(graph),
        *_without(graph),
        *_cut(graph, runs),
        *_earlier(graph),
        *_replaced(graph, runs),
    ):
        smaller = candidate.pruned()
        if smaller not in seen and smaller.outputs and smaller.lines:
            seen.add(smaller)
            yield smaller


def _outputs(graph: Graph) -> Iterator[Graph]:
    if len(graph.outputs) > 1:
        half = len(graph.outputs) // 2
        yield replace(graph, outputs=graph.outputs[:half])
        yield replace(graph, outputs=graph.outputs[half:])
        for k in range(len(graph.outputs)):
            yield replace(graph, outputs=graph.outputs[:k] + graph.outputs[k + 1 :])


def _without(graph: Graph) -> Iterator[Graph]:
    """Without one of the updates in place."""
    for k, line in enumerate(graph.lines):
        if not defined(line):
            yield replace(graph, lines=graph.lines[:k] + graph.lines[k + 1 :])


def _cut(graph: Graph, runs: Runs) -> Iterator[Graph]:
    """A value becomes an argument: what made it is gone. Late values first."""
    for k in reversed(range(len(graph.lines))):
        new = defined(graph.lines[k])
        if not new or set(new) & set(graph.outputs):
            continue
        rest = graph.lines[:k] + graph.lines[k + 1 :]
        to = {n: f"x{n[1:]}00" for n in new}
        leaves = tuple(Leaf(to[n], _literal(runs.narrow[n])) for n in new)
        lines = tuple(renamed(line, to) for line in rest)
        yield Graph((*graph.leaves, *leaves), lines, graph.outputs)


def _earlier(graph: Graph) -> Iterator[Graph]:
    """What an output is made of, instead of it."""
    for k, output in enumerate(graph.outputs):
        for line in graph.lines:
            if output in defined(line):
                for name in dict.fromkeys(names(line.partition(" = ")[2])):
                    if name[0] == "v":
                        yield replace(
                            graph, outputs=(*graph.outputs[:k], name, *graph.outputs[k + 1 :])
                        )


def _replaced(graph: Graph, runs: Runs) -> Iterator[Graph]:
    """A value becomes an earlier one of its type."""
    known = [leaf.name for leaf in graph.leaves]
    for k, line in enumerate(graph.lines):
        for name in defined(line):
            x = runs.narrow[name]
            for other in known:
                y = runs.narrow[other]
                if y.shape == x.shape and y.dtype == x.dtype and name not in graph.outputs:
                    lines = tuple(renamed(r, {name: other}) for r in graph.lines[k + 1 :])
                    yield replace(graph, lines=graph.lines[:k] + lines)
                    break
        known += defined(line)


def _literal(x: torch.Tensor) -> str:
    """An expression for a value: its elements where they are few."""
    kind = NAMES[x.dtype]
    if x.numel() <= 24 or not x.is_floating_point():
        values = (
            str(x.flatten().tolist()).replace("nan", 'float("nan")').replace("inf", 'float("inf")')
        )
        return f"torch.tensor({values}, dtype=t.{kind}).reshape({tuple(x.shape)})"
    return f"torch.randn({tuple(x.shape)}, generator=g(0)).to(t.{kind})"
