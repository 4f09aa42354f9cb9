"""`torch.bincount` while a model is traced: its size is `minlength`, or that for the example arguments.

Numbers beyond it are noticed when the kernel runs, where they are an index.
"""

from typing import Any

import torch


def _bincount(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return _counted(*args, **named)


BINCOUNT = {"bincount": _bincount}  # for `FunctionOverrides`: counts are sums of ones


def _counted(
    input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    length = minlength or int(input.max()) + 1
    given = torch.ones_like(input, dtype=torch.int64) if weights is None else weights
    wide = given.dtype if weights is None or weights.dtype is torch.float32 else torch.float64
    return torch.zeros(length, dtype=wide, device=input.device).index_add(0, input, given.to(wide))
