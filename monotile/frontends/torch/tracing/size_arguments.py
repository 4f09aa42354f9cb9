"""Scalar tensors as sizes, `x.view(n, -1)` and `F.interpolate(x, size=(h, w))`, while a model is traced.

PyTorch reads the numbers within its operators. Here they are read by `item()` before, so that they are known to be read (`numbers/example_values.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monotile.frontends.torch.tracing.overrides import Override


def _number(x: torch.Tensor) -> Any:
    counts = not (x.ndim or x.dtype is torch.bool or x.is_floating_point() or x.is_complex())
    return x.item() if counts else x


def _reads(first: int, last: int | None = None) -> Override:
    """An override whose arguments `first` to `last` are sizes, and so are those that are given by name."""

    def read(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        sizes, named = pytree.tree_map_only(torch.Tensor, _number, (args[first:last], named))
        behind = () if last is None else args[last:]
        return func(*args[:first], *sizes, *behind, **named)

    return read


_OF_A_TENSOR = (
    "view reshape expand repeat tile new_zeros new_ones new_empty split split_with_sizes unflatten unfold topk kthvalue tril triu diagonal"
    " pad interpolate pixel_shuffle pixel_unshuffle one_hot adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
    " adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
)
SIZE_ARGUMENTS: Mapping[str, Override] = {
    **dict.fromkeys(_OF_A_TENSOR.split(), _reads(1)),
    **dict.fromkeys(("zeros", "ones", "empty", "rand", "randn", "eye"), _reads(0)),
    "full": _reads(0, 1),
    "linspace": _reads(2),
}
