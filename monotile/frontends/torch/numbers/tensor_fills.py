"""Tensors filled with a scalar tensor, `x.new_full((n, 1), strides[i])`, while a model is traced.

PyTorch reads the number from the tensor, which is data-dependent. Here the tensor itself is broadcast.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeGuard
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

# The owner and the name of the function; the position of its fill value; whether the result has the dtype of the first argument.
_FILLING = (
    (torch, "full", 1, False), (torch, "full_like", 1, True), (torch.Tensor, "new_full", 2, True)
)  # fmt: skip


@contextmanager
def tensors_fill() -> Generator[None]:
    """Within, a traced scalar tensor may fill others without being read."""
    with ExitStack() as stack:
        for owner, name, place, like in _FILLING:
            stack.enter_context(
                patch.object(owner, name, _filling(getattr(owner, name), place, like))
            )
        yield


def _filling(plain: Callable[..., Any], place: int, like: bool) -> Callable[..., Any]:
    def fill(*args: Any, **named: Any) -> Any:
        value = args[place] if len(args) > place else named.get("fill_value")
        if not _is_unknown(value) or named.get("out") is not None:
            return plain(*args, **named)
        dtype = named.pop("dtype", None) or (args[0].dtype if like else _of_number(value))
        named.pop("fill_value", None)
        made = plain(*args[:place], 0, *args[place + 1 :], dtype=dtype, **named)
        return made + value.reshape(()).to(made)

    return fill


def _is_unknown(value: Any) -> TypeGuard[FakeTensor]:
    """Whether it is a tensor of one element of unknown value."""
    return isinstance(value, FakeTensor) and value.numel() == 1 and value.constant is None


def _of_number(value: torch.Tensor) -> torch.dtype:
    """The default dtype of a tensor that the number fills."""
    if value.dtype is torch.bool:
        return torch.bool
    return torch.get_default_dtype() if value.is_floating_point() else torch.int64
