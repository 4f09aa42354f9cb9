"""One call of a small model, compiled, beside PyTorch in float64."""

import copy
import time
from typing import Any

import torch
import transformers

import monotile
from bench.survey import small
from bench.survey.rows import Row, attempted, words
from monotile.runtime.accuracy import error, exact
from monotile.runtime.reference import eager, to_device


def answered(name: str, head: str, target: str, dtype: torch.dtype) -> Row:
    """head: an Auto class of transformers."""
    torch.manual_seed(0)
    try:
        model, given = _made(name, head)
    except Exception as reason:
        return Row(name=name, outcome="not built", said=words(reason))
    model = model.to(dtype)
    call = (), {k: v.to(dtype) if v.is_floating_point() else v for k, v in given.items()}
    if target == "cuda":
        moved, call = to_device(model, call, torch.device("cuda"))
        assert isinstance(moved, torch.nn.Module)
        model = moved

    def run() -> tuple[Any, float]:
        start, options = time.perf_counter(), monotile.Options(cache=False)
        fast = monotile.compile(
            copy.deepcopy(model), (), dict(call[1]), target=target, options=options
        )
        seconds = time.perf_counter() - start
        return fast(**call[1]), seconds

    outcome = attempted(name, run)
    if isinstance(outcome, Row):
        return outcome
    found, seconds = outcome
    try:
        right = exact(model, call)
    except RuntimeError:  # an operator of few types, such as _grouped_mm
        right = eager(model, call)
    ours, theirs = error(found, right), error(eager(model, call), right)
    good = ours <= max(1e-5 if dtype == torch.float32 else 1e-3, 3 * theirs)
    said = "right" if good else "inexact"
    return Row(name=name, outcome=said, error=ours, eager=theirs, seconds=seconds)


def _made(name: str, head: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
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
