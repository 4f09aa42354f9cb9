"""A small model compiled once for every number of sequences and of tokens, beside PyTorch in float64 at several."""

import copy
import time
from typing import Any

import msgspec
import torch
from torch.export import Dim

import monotile
from bench.survey import small
from bench.survey.answers import judged, made, moved, shapes
from bench.survey.rows import Row, attempted, words

SEQUENCES, TOKENS = 3, 48
SIZES = (
    (2, small.TOKENS),
    (1, small.TOKENS),
    (3, 5),
    (2, 33),
    (1, TOKENS),
    (1, 2),
)  # compiled with the first


def ranged(name: str, head: str, target: str, dtype: torch.dtype) -> Row:
    """head: an Auto class of transformers. What is no token (an image, sound) keeps its sizes but for their number."""
    torch.manual_seed(0)
    try:
        model, given = made(name, head)
        calls = [resized(given, *size) for size in SIZES]
        model, calls = moved(model, calls, target, dtype)
    except Exception as reason:
        return Row(name=name, outcome="not built", said=words(reason))

    def run() -> tuple[list[Any], float]:
        start, options = time.perf_counter(), monotile.Options(cache=False)
        fast = monotile.compile(
            copy.deepcopy(model),
            (),
            calls[0],
            dynamic_shapes=_dimensions(given),
            target=target,
            options=options,
        )
        seconds = time.perf_counter() - start
        return [_answer(fast, call) for call in calls], seconds

    outcome = attempted(name, run)
    if isinstance(outcome, Row):
        return outcome
    found, seconds = outcome
    pairs = [(call, x) for call, x in zip(calls, found, strict=True) if x is not None]
    row = judged(name, model, *zip(*pairs, strict=True), seconds)
    left = [shapes(call) for call, x in zip(calls, found, strict=True) if x is None]
    return msgspec.structs.replace(row, said=f"{row.said} not for {left}") if left else row


def _answer(fast: Any, call: dict[str, torch.Tensor]) -> Any:
    """None for sizes that the model is said not to take."""
    try:
        return fast(**call)
    except monotile.InputError as reason:
        if "compiled for" not in str(reason):
            raise
        return None


def resized(given: dict[str, torch.Tensor], sequences: int, tokens: int) -> dict[str, torch.Tensor]:
    """Fresh arguments of this many sequences, and of this many tokens where they are tokens."""

    def one(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.int64:
            return torch.randint(3, small.WORDS, (sequences, tokens))
        return torch.randn(sequences, *x.shape[1:])

    return {name: one(x) for name, x in given.items()}


def _dimensions(given: dict[str, torch.Tensor]) -> dict[str, dict[int, Any]]:
    sequences, tokens = Dim("sequences", max=SEQUENCES), Dim("tokens", min=2, max=TOKENS)
    return {
        name: {0: sequences, 1: tokens} if x.dtype == torch.int64 else {0: sequences}
        for name, x in given.items()
    }
