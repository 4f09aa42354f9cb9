"""Python loops over a symbolic size: one Program for all sizes, compared with PyTorch."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import monotile
from monotile.config import Options
from monotile.errors import InputError
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute, Loop
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.runtime.accuracy import error, exact, tensors
from monotile.targets.cuda.emit import settle
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.conftest import wide
from tests.frontend.loop_cases import (
    Begins,
    Chunks,
    Items,
    Left,
    Numbered,
    Remembered,
    Stepped,
    Updated,
)
from tests.frontend.loop_networks import (
    IN,
    WIDTH,
    Ahead,
    Backward,
    Both,
    Chosen,
    Comprehended,
    Decoder,
    Kept,
    Last,
    Listed,
    Recurrent,
    Selective,
    Stacks,
    Tuple,
    Twice,
    Two,
    Unbound,
    Written,
    sequence,
)
from tests.frontend.sized import Sized, check

CUDA = cuda_target("sm_90a")
LENGTH = Dim("length", max=7)
MODELS = {
    m.__name__: m
    for m in (
        Listed, Tuple, Two, Written, Backward, Unbound, Stacks, Both, Last, Twice, Kept, Chosen, Comprehended, Ahead, Selective,
        Left, Updated, Stepped, Items, Begins, Remembered, Chunks, Numbered,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_loop(name: str) -> None:
    check(MODELS[name](), sequence, ({1: LENGTH},), [(n,) for n in range(1, 8)])


def test_other_sizes() -> None:
    """A batch, and what the loop attends to, are as large as the call says."""

    def make(b: int, n: int, m: int) -> tuple[Tensor, ...]:
        seeded = torch.Generator().manual_seed(n)
        return torch.randn(b, n, IN, generator=seeded), torch.randn(b, m, WIDTH, generator=seeded)

    batch = Dim("batch", max=3)
    sizes = [(1, 1, 1), (3, 1, 5), (2, 3, 2), (2, 6, 5), (3, 7, 1), (1, 7, 5)]
    check(Decoder(), make, ({0: batch, 1: LENGTH}, {0: batch, 1: Dim("states", max=5)}), sizes)


class Between(Recurrent):
    """A slice of one of another tensor, which is as long, and one that may be longer."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Any:
        h = torch.zeros(2, WIDTH)
        for t in range(x.shape[1]):
            h = self.step(x[:, t], h) * y[:, t : t + 1] + z[:, t : t + 1]
        return h


def test_slices_of_others() -> None:
    def make(n: int, m: int) -> tuple[Tensor, ...]:
        return sequence(n)[0], torch.randn(2, n), torch.randn(2, m)

    shapes = ({1: LENGTH}, {1: LENGTH}, {1: Dim("longer", max=9)})
    sized = check(Between(), make, shapes, [(1, 1), (3, 5), (7, 9), (4, 4)])
    with pytest.raises(InputError, match="4"):
        sized(*make(5, 4))


@pytest.mark.parametrize(
    "name",
    ["Listed", "Written", "Both", *(wide(n) for n in ("Tuple", "Stacks", "Last", "Ahead", "Selective", "Begins"))],
)  # fmt: skip
def test_on_the_cpu(name: str) -> None:
    """Beside float64."""
    model = MODELS[name]().eval().requires_grad_(False)
    fast = monotile.compile(model, sequence(4), target="cpu", dynamic_shapes=({1: LENGTH},))
    for n in (1, 2, 3, 5, 7):
        args = sequence(n)
        found, right = tensors(fast(*args)), tensors(exact(model, (args, {})))
        assert [x.shape for x in found] == [x.shape for x in right]
        assert error(found, right) < 2e-6


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", ["Listed", "Written", wide("Ahead")])
def test_on_the_emulator(name: str) -> None:
    model = MODELS[name]().eval().requires_grad_(False)
    sized = Sized(model, sequence(4), ({1: LENGTH},))
    options = Options(workers=3)
    program, constants = transform(sized.captured.program, sized.captured.constants, options)
    program, context = for_target(program, CUDA)
    plan, source = settle(program, schedule(program, CUDA, options, context), CUDA, options)
    verify(plan, program, CUDA)
    for n in (1, 2, 4, 5, 7):
        args = sequence(n)
        values = sized.values(program, args, constants)
        found = sized.results(emulate(program, plan, source, values, late=n % 2 == 0, seed=n), args)
        assert error(found, tensors(exact(model, (args, {})))) < 2e-6


def test_what_it_updates_stays_where_it_is() -> None:
    """No iteration copies a tensor of the whole length, and the loop ends with the size."""
    sized = Sized(Written(), sequence(4), ({1: LENGTH},))
    (loop,) = [s for s in sized.captured.program.body if isinstance(s, Loop)]
    assert loop.count is not None
    assert not [s for s in loop.body if isinstance(s, Compute) and 7 in s.out.shape]


def test_the_code_stays_as_it_is() -> None:
    model, code = Listed(), Listed.forward.__code__
    Sized(model, sequence(4), ({1: LENGTH},))
    assert Listed.forward.__code__ is code
    program = capture(model, sequence(4)).program  # of one size
    assert not [s for s in program.body if isinstance(s, Loop)]
