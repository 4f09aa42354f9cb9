"""Python's `if` on a tensor's value: one kernel that goes every way, as eager PyTorch, on the CPU and on the emulator."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

import monotile
from monotile.ir.program import Branch, Loop, Statement
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide
from tests.models.accuracy import tensors
from tests.models.branch_networks import CASES, Continues, Exits, Skip, inputs, made

OPTIONS = monotile.Options(cache=False)
NEAR = {"rtol": 1e-4, "atol": 1e-5}


def branches(body: Sequence[Statement]) -> int:
    """How many there are, in one another too."""
    found = 0
    for s in body:
        match s:
            case Branch(_, then, otherwise):
                found += 1 + branches(then) + branches(otherwise)
            case Loop():
                found += branches(s.body)
            case _:
                pass
    return found


FURTHER = ("if_else", "returns", "expression", "skip", "continues", "exits", "breaks")


@pytest.mark.parametrize("name", [wide(n) if n in FURTHER else n for n in CASES])
def test_on_the_cpu(name: str) -> None:
    ours, theirs = made(name), made(name)
    fast = monotile.compile(ours, (inputs()[0],), options=OPTIONS)
    assert fast.kernels == 1
    for x in inputs():
        torch.testing.assert_close(tensors(fast(x.clone())), tensors(theirs(x.clone())), **NEAR)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), **NEAR)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", CASES)
def test_on_the_emulator(name: str) -> None:
    ours, theirs = made(name), made(name)
    fast = Emulated(ours, (inputs()[0],))
    assert branches(fast.captured.program.body) >= CASES[name].branches
    for seed, x in enumerate(inputs()):
        if fast.program.states:
            theirs.load_state_dict(ours.state_dict())
        found = fast(x.clone(), seed=seed)
        torch.testing.assert_close(found, tensors(theirs(x.clone())), **NEAR)
        for state, value in fast.states.items():
            torch.testing.assert_close(torch.from_numpy(value), theirs.state_dict()[state], **NEAR)


@pytest.mark.parametrize("name", ["elif", wide("returns"), wide("skip"), "kept"])
def test_torch_compile(name: str) -> None:
    """Dynamo cuts the graph at an `if`."""
    torch._dynamo.reset()
    ours, theirs = made(name), made(name)
    fast = torch.compile(ours, backend="monotile")
    with torch.no_grad():
        for x in inputs():
            torch.testing.assert_close(fast(x.clone()), theirs(x.clone()), **NEAR)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), **NEAR)


@pytest.mark.parametrize("network", [Skip, Continues, Exits])
def test_the_source_does_not_grow_with_the_layers(network: Callable[[int], nn.Module]) -> None:
    sizes: list[int] = []
    for layers in (5, 10):
        model = network(layers).eval().requires_grad_(False)
        fast = monotile.compile(model, (inputs()[0],), target="cpu", options=OPTIONS)
        torch.testing.assert_close(tensors(fast(inputs()[0])), tensors(model(inputs()[0])), **NEAR)
        sizes.append(len(fast.source))
    assert sizes[1] < 1.05 * sizes[0]
