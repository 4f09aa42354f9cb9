"""`torch.where` of a mask of uint8 while a model is traced: PyTorch runs it, with a warning, and its tracer does not."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class ByteMasks(TorchFunctionMode):
    """Within, such a mask is one of bools."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        named = dict(kwargs or {})
        if getattr(func, "__name__", "") == "where":
            place = int(func is torch.Tensor.where)
            args = tuple(_mask(x) if k == place else x for k, x in enumerate(args))
            named = {n: _mask(x) if n == "condition" else x for n, x in named.items()}
        return func(*args, **named)


def _mask(x: Any) -> Any:
    return x != 0 if isinstance(x, torch.Tensor) and x.dtype is torch.uint8 else x
