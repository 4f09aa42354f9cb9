"""Products of float32 in all its bits, unless a test asks for less."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def strict_float32() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
