"""PyTorch's own questions whether a tensor is empty, of data-dependent sizes, while a model is traced.

Operators of Python and of C++ ask `x.numel() == 0` for a shorter way to the same result, and PyTorch raises an error where nothing says how many elements
there are. The answer is that there are some, as PyTorch assumes of sizes that are known: lowerings hold for empty tensors too. The question of a
model itself is left to its branches.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols

from monotile.frontends.torch.branches import paths

_PYTORCH = torch.__path__[0]
# Files between the question and who asks it.
_BETWEEN = (f"{_PYTORCH}/fx/experimental/", f"{_PYTORCH}/__init__.py", paths.__file__)


@contextmanager
def some_elements() -> Generator[None]:
    """Within, data-dependent sizes are not 0 where PyTorch's operators ask."""
    inner: Any = ShapeEnv.evaluate_expr

    def evaluate(self: Any, expr: Any, *args: Any, **named: Any) -> Any:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        known = named.get("fallback_value") is not None
        if not known and _is_about_none(expr) and _is_pytorch(frame):
            named["fallback_value"] = isinstance(expr, sympy.Ne)
        return inner(self, expr, *args, **named)

    with patch.object(ShapeEnv, "evaluate_expr", evaluate):
        yield


def _is_about_none(expr: Any) -> bool:
    """Whether `expr` compares a number of elements that depends on data with 0."""
    if not isinstance(expr, sympy.Eq | sympy.Ne) or expr.rhs != 0:
        return False
    number: Any = expr.lhs
    factors: Any = sympy.Mul.make_args(number)
    return all(x.is_Symbol or x.is_Integer for x in factors) and bool(free_unbacked_symbols(expr))


def _is_pytorch(frame: FrameType | None) -> bool:
    """Whether code of PyTorch asks, the first of the frames outwards that passes no question on."""
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_PYTORCH)
