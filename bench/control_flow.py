"""Networks whose course depends on their data, each one kernel, beside PyTorch where the host decides; and a product with a softmax alone.

    python -m bench.control_flow [CASE ...] [--rival eager|compile|max-autotune]... [--out FILE]

A rival runs what lies between two decisions of the host (a step, a gate, a block: `bench.hosted`) and, but for eager, replays it from a CUDA
graph as well. An answer is compared with float64 first.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import monotile
from bench import hosted
from bench.harness import (
    Run,
    command,
    graph_timing,
    rival,
    timed,
    timing,
)
from bench.zoo.recurrences import nasrnn, tree_lstm, word_decoder
from bench.zoo.scores import scores
from bench.zoo.skipnet import skipnet
from monotile.compare.results import Entry, Timing
from monotile.runtime.accuracy import error, exact
from monotile.runtime.measure import graphed, measure
from monotile.runtime.reference import map_tensors

Hosted = Callable[[Any, hosted.Args, hosted.Faster], Run]


class Case(NamedTuple):
    """make: the model and its arguments, on the CPU. hosted: how the host runs it; None where nothing is to be decided."""

    make: Callable[..., tuple[nn.Module, tuple[Tensor, ...]]]
    dtype: torch.dtype
    hosted: Hosted | None
    sizes: dict[str, Any] = {}  # noqa: RUF012 never changed


CASES = {
    "nasrnn": Case(nasrnn, torch.float32, hosted.nasrnn, {"steps": 100}),
    "nasrnn_1000": Case(nasrnn, torch.float32, hosted.nasrnn, {"steps": 1000}),
    "word_decoder": Case(word_decoder, torch.float32, hosted.word_decoder),
    "skipnet": Case(skipnet, torch.float16, hosted.skipnet),
    "skipnet_fp32": Case(skipnet, torch.float32, hosted.skipnet),
    "tree_lstm": Case(tree_lstm, torch.float32, hosted.tree_lstm, {"leaves": 32}),
    "scores": Case(scores, torch.float16, None),
}


def exact_answer(case: Case, model: nn.Module, args: tuple[Tensor, ...]) -> Any:
    """In float64, by the form that needs no compiler."""
    if case.hosted is None:
        return exact(model, (args, {}))
    wide = map_tensors((args, {}), lambda x: x.double() if x.is_floating_point() else x)[0]
    with torch.no_grad():
        return case.hosted(copy.deepcopy(model).double(), wide, lambda step: step)()


def rivals_of(
    case: Case, model: nn.Module, args: tuple[Tensor, ...], names: tuple[str, ...]
) -> Iterator[tuple[str, Run]]:
    """Calls that take nothing, by name; "graph" where each step is replayed from a CUDA graph. A step is compiled at its first call: before
    the next rival is made, so that its compilation falls into no capture."""
    for name in names:
        if case.hosted is None:
            module = rival(name, model)
            yield name, lambda module=module: module(*args)
            continue
        yield name, case.hosted(model, args, lambda step, n=name: rival(n, step))
        if name != "eager":
            yield (
                f"{name} graph",
                case.hosted(model, args, lambda step, n=name: graphed(rival(n, step))),
            )


def entry(name: str, case: Case, rivals: tuple[str, ...], device: torch.device) -> Entry:
    made, args = case.make(case.dtype, **case.sizes)
    model = made.requires_grad_(False).to(device)
    args = tuple(x.to(device) for x in args)
    with torch.no_grad():
        right = exact_answer(case, model, args)
        fast, took = timed(lambda: monotile.compile(model, args))
        errors, others = {"ours": error(fast(*args), right)}, dict[str, Run]()
        for n, run in rivals_of(case, model, args, rivals):
            others[n] = run
            errors[n] = error(run(), right)
        ours = timing(
            measure(lambda: fast(*args), device, 0.5, 20),
            measure(graphed(lambda: fast(*args)), device, 0.5, 20),
            took,
        )
        whole = case.hosted is None
        times: dict[str, Timing] = {
            n: graph_timing(run, device) if whole else timing(measure(run, device, 1.0, 10), None)
            for n, run in others.items()
        }
    return Entry(
        model=name, arguments=case.sizes, dtype=str(case.dtype).removeprefix("torch."),
        ours=ours, rivals=times, errors=errors,
    )  # fmt: skip


def entries(
    names: tuple[str, ...], rivals: tuple[str, ...], device: torch.device, _rate: float
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    torch._dynamo.config.recompile_limit = 256  # one code for all blocks of a network
    for name in names:
        yield name, lambda name=name: entry(name, CASES[name], rivals, device)


NOTES = "rivals run by the host, step by step; 'graph': each step in a CUDA graph"
main = command(CASES, NOTES, entries)


if __name__ == "__main__":
    main()
