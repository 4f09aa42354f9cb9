"""The networks of bench.control_flow, tiny, on the CPU: one kernel each, and both forms give what float64 does."""

from typing import Any

import pytest
import torch

import monotile
from bench.control_flow import CASES, exact_answer, rivals_of
from bench.to_source import captured_for, compiled, export, target_of
from monotile.plan.nodes import Body, Choose, Repeat
from monotile.plan.walk import bodies_of, stages_in
from monotile.runtime.accuracy import error
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

TINY: dict[str, dict[str, Any]] = {
    "nasrnn": {"width": 16, "steps": 5, "most": 9},
    "word_decoder": {"words": 30, "width": 16, "steps": 4, "most": 20},
    "skipnet": {"blocks": (2, 3), "planes": 8, "image": 32, "classes": 10},
    "tree_lstm": {"words": 20, "width": 16, "leaves": 5, "most": 16},
    "scores": {"batch": 2, "heads": 3, "tokens": 16, "width": 8},
}


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_one(name: str) -> None:
    case = CASES[name]._replace(dtype=torch.float32)
    model, args = case.make(case.dtype, **TINY[name])
    model.requires_grad_(False)
    right = exact_answer(case, model, args)
    fast = monotile.compile(model, args, target="cpu", options=monotile.Options(cache=False))
    assert fast.kernels == 1
    with torch.no_grad():
        assert error(fast(*args), right) < 1e-5
        for _, run in rivals_of(case, model, args, ("eager",)):
            for _ in range(2):  # states begin anew
                assert error(run(), right) < 1e-5


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", ["nasrnn", "word_decoder", "tree_lstm", "scores"])
def test_on_the_emulator(name: str) -> None:
    case = CASES[name]
    model, args = case.make(torch.float32, **TINY[name])
    right = exact_answer(case, model.requires_grad_(False), args)
    assert error(tuple(Emulated(model, args)(*args)), right) < 1e-5


def test_other_lengths() -> None:
    """One kernel for all lengths, none and the longest among them."""
    case = CASES["nasrnn"]
    model, (x, count) = case.make(case.dtype, **TINY["nasrnn"])
    fast = monotile.compile(model.requires_grad_(False), (x, count), target="cpu")
    for n in (0, 1, len(x)):
        args = (x, torch.tensor(n))
        assert error(fast(*args), exact_answer(case, model, args)) < 1e-5


def _barriers(body: Body) -> int:
    """Hand-offs of the grid on the longest way through `body`."""
    most = 0
    for n in body:
        inner = max(map(_barriers, bodies_of(n)), default=0)
        most += (n.handoff == "grid") + inner
    return most


@pytest.mark.parametrize(("name", "handoffs"), [("nasrnn", 1), ("tree_lstm", 2)])
def test_hand_offs_of_a_step(name: str, handoffs: int) -> None:
    """What decides costs none: a NASRNN's step is one stage; a tree's node is made in one, which the stack waits for."""
    model, args = CASES[name].make(torch.float32)
    options = monotile.Options(cache=False)
    target = target_of("cuda:sm_90a", options)
    captured, _ = captured_for(target, export(model.requires_grad_(False), args))
    plan = compiled(captured, target, options).plan
    (loop,) = (n for n in plan.body if isinstance(n, Repeat))
    assert "grid" not in (loop.handoff, loop.again)
    assert _barriers(loop.body) == handoffs
    for choice in (n for n in loop.body if isinstance(n, Choose)):
        assert [_barriers(side) for side in choice.bodies] == [
            1,
            0,
        ]  # a word needs nothing of the stack
    assert not any(n.endswith("_base") for s in stages_in(loop.body) for n in s.steps[0].computes)
