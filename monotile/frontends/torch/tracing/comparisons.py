"""`torch.equal`, `allclose` and `is_nonzero` while a model is traced: they return Python's bools, which depend on data, so tensors stand for these."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

from monotile.frontends.torch.branches.markers import truth
from monotile.frontends.torch.loops.tensor_numbers import number


def _equal(x: torch.Tensor, other: torch.Tensor) -> Any:
    if x is other:
        return True
    return x.shape == other.shape and number((x == other).all())


def _allclose(
    input: torch.Tensor,  # the names are PyTorch's
    other: torch.Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Any:
    close = torch.isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
    return number(close.all())


def _is_nonzero(input: torch.Tensor) -> Any:
    return number(truth(input))


_TRACED: dict[str, Callable[..., Any]] = {
    "equal": _equal,
    "allclose": _allclose,
    "is_nonzero": _is_nonzero,
}


@contextmanager
def comparisons_are_traced() -> Generator[None]:
    """Within, these functions of traced tensors give tensors that stand for bools."""
    with ExitStack() as stack:
        for name, of in _TRACED.items():
            for owner in (torch, torch.Tensor):
                plain = getattr(owner, name)
                stack.enter_context(patch.object(owner, name, _if_traced(plain, of)))
        yield


def _if_traced(plain: Callable[..., Any], of: Callable[..., Any]) -> Callable[..., Any]:
    def asked(*args: Any, **named: Any) -> Any:
        traced = any(isinstance(x, FakeTensor) for x in (*args, *named.values()))
        return of(*args, **named) if traced else plain(*args, **named)

    return asked
