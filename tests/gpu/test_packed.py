"""Attention of packed sequences on a GPU."""

import pytest
import torch

import monotile
from tests.models.accuracy import error
from tests.models.test_packed import LENGTHS, WINDOWS, Packed, given, right

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_small_packed_sequences(window: tuple[int, int], dtype: torch.dtype) -> None:
    fast = monotile.compile(Packed(window), tuple(x.cuda() for x in given(*LENGTHS[0], dtype, 64)))
    for lengths in LENGTHS:
        args = given(*lengths, dtype, 64)
        found = fast(*(x.cuda() for x in args)).cpu()
        assert error(found, right(args, window)[:1]) < (1e-5 if dtype == torch.float32 else 2e-2)
