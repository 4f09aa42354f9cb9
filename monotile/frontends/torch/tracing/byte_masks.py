"""`torch.where` of a mask of uint8 while a model is traced: PyTorch runs it, with a warning, and its tracer does not."""

from collections.abc import Callable
from typing import Any

import torch


def _where(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    place = int(func is torch.Tensor.where)
    args = tuple(_mask(x) if k == place else x for k, x in enumerate(args))
    return func(*args, **{n: _mask(x) if n == "condition" else x for n, x in named.items()})


BYTE_MASKS = {"where": _where}  # for `FunctionOverrides`: such a mask is one of bools


def _mask(x: Any) -> Any:
    return x != 0 if isinstance(x, torch.Tensor) and x.dtype is torch.uint8 else x
