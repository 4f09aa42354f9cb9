"""A small model that writes: `monotile.generator` beside transformers' generate."""

import time
from typing import Any

import torch
import transformers

import monotile
from bench.survey import small
from bench.survey.rows import Row, attempted, words

PROMPT, MORE, CAPACITY, CHUNK = 21, 10, 48, 16
TIE = 1e-4  # of two logits, between which an id may differ


def written(name: str, head: str, target: str, dtype: torch.dtype) -> Row:
    """head: an Auto class of transformers whose models write."""
    torch.manual_seed(0)
    ids = torch.randint(3, small.WORDS, (1, PROMPT))
    try:
        model, ids, wanted = _made(name, head, target, dtype, ids)
    except Exception as reason:
        return Row(name=name, outcome="not built", said=words(reason))

    def run() -> tuple[torch.Tensor, float]:
        start, options = time.perf_counter(), monotile.Options(cache=False)
        lm = monotile.generator(model, CAPACITY, chunk=CHUNK, target=target, options=options)
        seconds = time.perf_counter() - start
        # What a sequence leaves behind, the next may not see.
        lm.generate(ids.flip(1), 3, eos_token_id=[])
        return lm.generate(ids, MORE, eos_token_id=[]), seconds

    outcome = attempted(name, run)
    if isinstance(outcome, Row):
        return outcome
    found, seconds = outcome
    said = "" if torch.equal(found, wanted) else _apart(model, found, wanted)
    return Row(name=name, outcome="inexact" if said else "right", said=said, seconds=seconds)


def _made(
    name: str, head: str, target: str, dtype: torch.dtype, ids: torch.Tensor
) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The model, the prompt where it is, and what transformers makes of it."""
    device = "cuda" if target == "cuda" else "cpu"
    reasons = []
    for values in small.settings(name):
        try:
            it = small.config(name, values)
            if getattr(it, "is_decoder", True) is False:
                it.is_decoder = True  # as what writes has to be
            model = getattr(transformers, head).from_config(it).eval().requires_grad_(False)
            _varied(model)
            model, ids = model.to(device, dtype), ids.to(device)
            return model, ids, _theirs(model, ids)
        except Exception as reason:
            reasons.append(words(reason))
    raise ValueError(reasons[0])


def _varied(model: torch.nn.Module) -> None:
    """Larger matrices: as they are initialised, a model repeats its last word. And some where there are zeros: routers would choose among
    equals."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(3) if parameter.any() else parameter.normal_(0, 0.06)


def _theirs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    return model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=MORE,
        min_new_tokens=None,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )


def _apart(model: Any, found: torch.Tensor, wanted: torch.Tensor) -> str:
    """What is said of other ids, nothing where two words were as likely."""
    if found.shape != wanted.shape:
        return f"{found.shape[1]} ids instead of {wanted.shape[1]}"
    at = int((found != wanted)[0].nonzero()[0])
    logits = model(wanted[:, :at]).logits[0, -1].double()
    ours, theirs = (float(logits[x[0, at]]) for x in (found, wanted))
    if theirs - ours < TIE * max(1.0, float(logits.abs().max())):
        return ""
    return f"id {at - PROMPT} of {MORE} is another: logits {ours:.5f} and {theirs:.5f}"
