"""One call of a small model, compiled, beside PyTorch in float64."""

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers

import monotile
from bench.survey import small
from bench.survey.rows import Row, attempted, words
from monotile.runtime.accuracy import error, exact
from monotile.runtime.reference import eager, map_tensors

Given = dict[str, torch.Tensor]


def answered(name: str, head: str, target: str, dtype: torch.dtype) -> Row:
    """head: an Auto class of transformers."""
    torch.manual_seed(0)
    try:
        model, given = made(name, head)
        model, calls = moved(model, [given], target, dtype)
    except Exception as reason:
        return Row(name=name, outcome="not built", said=words(reason))

    def run() -> tuple[list[Any], float]:
        start, options = time.perf_counter(), monotile.Options(cache=False)
        fast = monotile.compile(
            copy.deepcopy(model), (), dict(calls[0]), target=target, options=options
        )
        seconds = time.perf_counter() - start
        return [fast(**calls[0])], seconds

    outcome = attempted(name, run)
    if isinstance(outcome, Row):
        return outcome
    return judged(name, model, calls, *outcome)


def moved(
    model: torch.nn.Module, calls: Sequence[Given], target: str, dtype: torch.dtype
) -> tuple[torch.nn.Module, list[Given]]:
    """The model and what it is called with, of this dtype, where the target is. Raises what PyTorch does if it does not run there."""
    device = torch.device("cuda" if target == "cuda" else "cpu")

    def one(x: torch.Tensor) -> torch.Tensor:
        return x.to(device, dtype if x.is_floating_point() else x.dtype)

    model, calls = model.to(device, dtype), [map_tensors(((), call), one)[1] for call in calls]
    for call in calls:
        model(**call)
    return model, calls


def judged(
    name: str, model: torch.nn.Module, calls: Sequence[Given], found: Sequence[Any], seconds: float
) -> Row:
    """The largest error of what was found for each call, and at which calls it is too large."""
    worst, said = (0.0, 0.0), []
    for call, one in zip(calls, found, strict=True):
        ours, theirs = _errors(model, call, one)
        worst = max(worst, (ours, theirs))
        floor = 1e-5 if next(model.parameters()).dtype == torch.float32 else 1e-3
        if not ours <= max(floor, 3 * theirs):
            said.append(f"{ours:.1e} with {shapes(call)}")
    return Row(
        name=name,
        outcome="inexact" if said else "right",
        said="; ".join(said),
        error=worst[0],
        eager=worst[1],
        seconds=seconds,
    )


def shapes(call: Given) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for x in call.values()]


def _errors(model: torch.nn.Module, call: Given, found: Any) -> tuple[float, float]:
    try:
        right = exact(model, ((), call))
    except RuntimeError:  # an operator of few types, such as _grouped_mm
        right = eager(model, ((), call))
    return error(found, right), error(eager(model, ((), call)), right)


def made(name: str, head: str) -> tuple[torch.nn.Module, Given]:
    """The model and arguments that it runs with."""
    reasons = []
    for values in small.settings(name):
        try:
            it = small.config(name, values)
            model = getattr(transformers, head).from_config(it).eval().requires_grad_(False)
        except Exception as reason:
            reasons.append(words(reason))
            continue
        for given in small.inputs(model, it):
            try:
                model(**given)
            except Exception as reason:
                reasons.append(words(reason))
            else:
                return model, given
    raise ValueError(reasons[0])
