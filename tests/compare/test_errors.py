"""How far off an answer of the bench may be."""

import pytest
import torch
from torch import nn

from monotile.compare.jobs import Outcome
from monotile.compare.worker import checked
from monotile.errors import MonotileError

HALF = nn.Linear(1, 1).half()  # of which only the dtype is asked


def away(count: int, places: float) -> tuple[torch.Tensor, torch.Tensor]:
    """float16 numbers, and exact ones from which each is `places` units in the last place away."""
    found = torch.ones(count, dtype=torch.float16)
    return found, found.double() * (1 + places * torch.finfo(torch.float16).eps)


def test_a_single_number_may_be_one_unit_in_the_last_place_off() -> None:
    found, right = away(1, 0.9)
    assert checked(Outcome(), found, right, HALF, limit=1e-5).error is not None


@pytest.mark.parametrize(("count", "places"), [(1, 1.5), (1000, 0.9)])
def test_many_numbers_may_not(count: int, places: float) -> None:
    found, right = away(count, places)
    with pytest.raises(MonotileError, match="wrong answer"):
        checked(Outcome(), found, right, HALF, limit=1e-5)
