"""Attention of packed sequences on a GPU."""

import pytest
import torch

import monotile
from tests.models.accuracy import error
from tests.models.test_packed import (
    LENGTHS,
    WINDOWS,
    Packed,
    dirty,
    given,
    lengths,
    others,
    packed,
    right,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_small_packed_sequences(window: tuple[int, int], dtype: torch.dtype) -> None:
    fast = monotile.compile(Packed(window), tuple(x.cuda() for x in given(*LENGTHS[0], dtype, 64)))
    for ends in LENGTHS:
        args = given(*ends, dtype, 64)
        found = fast(*(x.cuda() for x in args)).cpu()
        assert error(found, right(args, window)[:1]) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_many_packed_sequences(window: tuple[int, int], dtype: torch.dtype) -> None:
    """Several runs of rows, the last one short."""
    example = packed(lengths(1000, 9, 0), 1000, dtype, 64)
    fast = monotile.compile(Packed(window), tuple(x.cuda() for x in example))
    for seed in range(6):
        args = packed(lengths(1000, 9, seed), 1000, dtype, 64)
        found = fast(*(x.cuda() for x in args)).cpu()
        assert error(found, right(args, window)[:1]) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_keys_of_other_sequences_are_not_read(dtype: torch.dtype) -> None:
    args, wanted = dirty(dtype, 64)
    own = tuple(x.cuda() for x in args)
    found = monotile.compile(Packed((-1, -1)), own)(*own).cpu()
    assert error(others(found), [wanted]) < (1e-5 if dtype == torch.float32 else 2e-2)
