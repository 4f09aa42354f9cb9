"""Data-dependent selections on the GPU: see tests/models/test_data_dependent.py."""

import pytest
import torch
from torch.export import Dim

import monotile
from monotile.runtime.accuracy import exact, tensors
from monotile.runtime.reference import eager
from tests.models.accuracy import error
from tests.models.test_data_dependent import CASES, Args, made

pytestmark = pytest.mark.gpu


def on_the_gpu(args: Args, dtype: torch.dtype) -> Args:
    return tuple(x.cuda().to(dtype if x.is_floating_point() else x.dtype) for x in args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", [n for n in CASES if n != "results"])
def test_data_dependent(name: str, dtype: torch.dtype) -> None:
    model, args = made(name)
    model.cuda().to(dtype)
    tokens = Dim("tokens", min=1, max=300)
    shapes = tuple({1: tokens} for _ in args(7))
    fast = monotile.compile(model, on_the_gpu(args(70), dtype), dynamic_shapes=shapes)
    for n in (1, 70, 300):
        given = on_the_gpu(args(n), dtype)
        found, right = tensors(fast(*given)), tensors(exact(model, (given, {})))
        assert [x.shape for x in found] == [x.shape for x in right]
        most = 4e-3 if dtype is torch.float16 else 2e-5
        theirs = tensors(eager(model, (given, {})))  # may choose other experts than float64 does
        assert off(found, right) < max(most, 2 * off(theirs, right))


def test_results_as_long_as_data_say() -> None:
    model, args = made("results")
    fast = monotile.compile(model.cuda(), on_the_gpu(args(70), torch.float32))
    for _ in range(3):
        given = on_the_gpu(args(70), torch.float32)
        found, right = tensors(fast(*given)), tensors(exact(model, (given, {})))
        assert [x.shape for x in found] == [x.shape for x in right]
        assert off(found, right) < 2e-5


def off(found: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    return error([x.double() for x in found], [x.double() for x in right])
