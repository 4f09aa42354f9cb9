"""`torch.equal` while a model is traced: its result is a tensor instead of a Python bool, because it depends on data."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def equality_is_traced() -> Generator[None]:
    """Within, whether traced tensors of one shape are equal depends on their data."""

    def traced(plain: Callable[..., Any]) -> Callable[..., Any]:
        def equal(x: torch.Tensor, other: torch.Tensor) -> Any:
            if not isinstance(x, FakeTensor) and not isinstance(other, FakeTensor):
                return plain(x, other)
            if x is other:
                return True
            return x.shape == other.shape and (x == other).all()

        return equal

    with (
        patch.object(torch, "equal", traced(torch.equal)),
        patch.object(torch.Tensor, "equal", traced(torch.Tensor.equal)),
    ):
        yield
