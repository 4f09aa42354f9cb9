"""Python's `max` and `min` of tensors while a model is traced. PyTorch's exporter makes `torch.maximum` of them, which is NaN if one of the two is;
Python's `max(a, b)` is b only where b > a."""

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._export import non_strict_utils

from monotile.frontends.torch.loops.tensor_numbers import number, stands_for_number

_NAME = "_tensor_min_max"  # the exporter's form of both


@contextmanager
def extrema_as_python() -> Generator[None]:
    """Within, `max` and `min` choose as Python's do, of any number of tensors, and among the rows of one."""
    plain = getattr(non_strict_utils, _NAME)

    def extremum(
        *args: Any, real_callable: Any, tensor_callable: Callable[..., Any], **named: Any
    ) -> Any:
        given = args[0].unbind() if len(args) == 1 and isinstance(args[0], torch.Tensor) else args
        how = {"real_callable": real_callable, "tensor_callable": tensor_callable}
        if named or (len(given) == 1 and given is args):
            return plain(*args, **how, **named)
        if len(given) != 2:
            return functools.reduce(functools.partial(extremum, **how), given)
        x, y = given
        same = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype is y.dtype
        if not same:
            return plain(x, y, **how)
        better = y < x if tensor_callable is torch.minimum else y > x
        found = torch.where(better, y, x)
        return number(found) if stands_for_number(x) and stands_for_number(y) else found

    with patch.object(non_strict_utils, _NAME, extremum):
        yield
