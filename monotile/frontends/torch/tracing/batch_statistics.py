"""Batch normalisation by the batch's own statistics in a model in eval mode, whose forward asks for it: the running ones are updated in each call.

PyTorch's schema of the operator does not say that it updates them; that of another does.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def _batch_norm(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if func is not F.batch_norm:
        return func(*args, **named)
    given = inspect.signature(F.batch_norm).bind(*args, **named)
    given.apply_defaults()
    return _normalised(*given.args)


def _normalised(x: torch.Tensor, mean: Any, variance: Any, *rest: Any) -> torch.Tensor:
    """The arguments are those of `torch.nn.functional.batch_norm`, all of them."""
    weight, bias, training, momentum, eps = rest
    if not training or mean is None or variance is None:
        return F.batch_norm(x, mean, variance, *rest)
    update = torch.ops.aten._native_batch_norm_legit
    return update(x, weight, bias, mean, variance, True, momentum, eps)[0]


BATCH_STATISTICS = {"batch_norm": _batch_norm}  # for `FunctionOverrides`
