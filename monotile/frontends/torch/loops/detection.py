"""Detects where a traced model begins a loop whose number of iterations is a symbolic size.

PyTorch would turn that size into a fixed number. Here the loop is detected first, its code is converted (`branches/converted_functions.py`), and the model is
traced again.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.loops.number_operands import with_number_operands
from monotile.frontends.torch.loops.stacked import (
    Run,
    Stacked,
    interleaved,
    is_dynamic,
    is_symbolic,
)
from monotile.frontends.torch.loops.tensor_numbers import (
    apply_to_numbers,
    stands_for_number,
    tensor_of,
)
from monotile.frontends.torch.origin import describe_frame, is_users
from monotile.frontends.torch.sizes.range_export import is_violation
from monotile.frontends.torch.sizes.symbolic_operators import symbolic_result


class LoopDetectedError(BaseException):
    """A loop was converted: the model has to be traced again. Not an Exception, which the model might catch."""


class _LoopDetector(TorchFunctionMode):
    """Within, a tensor may be split along a dynamic dimension. on_call: receives the frame of each call of a PyTorch function."""

    def __init__(self, on_call: Callable[[FrameType], None] | None = None) -> None:
        super().__init__()
        self._on_call = on_call

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        named, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "__get__" and not stands_for_number(args[0]):  # most calls, as for a shape
            return func(*args, **named)
        if self._on_call is not None and not torch.compiler.is_dynamo_compiling():
            self._on_call(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if name in ("squeeze", "squeeze_") and isinstance(args[0], torch.Tensor):
            _guard_against_one(*args, **named)
        if name in ("unbind", "split", "chunk") and args and isinstance(args[0], torch.Tensor):
            found = _split_rows(name, *args, **named)
            if found is not None:
                return found
        if (
            name in ("tensor", "as_tensor")
            and args
            and any(map(stands_for_number, pytree.tree_leaves(args[0])))
        ):
            return tensor_of(*args, **named)
        if (found := symbolic_result(name, args, named)) is not None:
            return found
        if (found := with_number_operands(name, args, named)) is not None:
            return found
        if any(map(stands_for_number, args)):
            return apply_to_numbers(func, args, named)
        return func(*args, **named)


def _guard_against_one(x: torch.Tensor, dim: Any = None) -> None:
    """Records a guard on whether these dimensions are 1 (`sizes/guards.py`)."""
    every = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    for d in every:
        bool(is_dynamic(x.shape[d]) and x.shape[d] == 1)


def _split_rows(
    name: str, x: torch.Tensor, *args: Any, dim: int = 0, **named: Any
) -> Stacked | None:
    """The rows of `x` if their number is dynamic; None if PyTorch may split it."""
    given: list[Any] = [*named.values(), *args]
    places = given if name == "unbind" else given[1:]
    dim = (places[0] if places else dim) % max(x.ndim, 1)
    if not x.ndim or not is_dynamic(x.shape[dim]):
        return None
    if name == "split" and (is_dynamic(given[0]) or given[0] != 1):
        return None
    size: Any = x.shape[dim]
    parts: Any = given[0] if name == "chunk" else size
    if not (is_dynamic(parts) and parts.node.expr == size.node.expr):
        return None
    rows = x.movedim(dim, 0)
    return Stacked([Run(size, rows if name == "unbind" else rows.unsqueeze(dim + 1))])


def _repeated(items: list[Any], count: torch.SymInt) -> Stacked:
    """`items * count` for a dynamic count."""

    def each(x: Any) -> Any:
        return x.unsqueeze(0).expand(count, *x.shape)

    values = [pytree.tree_map_only(torch.Tensor, each, x) for x in items]
    return Stacked([interleaved(values, count)] if values else [])


@contextmanager
def loops_detected(
    converts: Callable[[FrameType], bool],
    replaces: Callable[[FrameType], bool],
    on_call: Callable[[FrameType], None] | None = None,
) -> Generator[None]:
    """Within, `converts` is called with each frame that would turn a dynamic size into a number, as the head of a loop does, and `replaces` with those
    that do so with a data-dependent size. Raises LoopDetectedError where they return True; CaptureError where tracing then fails because the size was
    fixed. on_call: receives the frame of each call of a PyTorch function."""
    number, iterate = torch.SymInt.__index__, FakeTensor.__iter__
    whole, fraction = torch.SymFloat.__int__, torch.SymFloat.__float__
    refused: list[str] = []
    multiplied: Any = torch.SymInt.__rmul__

    def report(frame: FrameType, x: Any = None) -> None:
        if not is_users(frame.f_code.co_filename) or not (x is None or is_symbolic(x)):
            return
        if x is not None and not is_dynamic(x):
            if replaces(frame):
                raise LoopDetectedError
            return
        if converts(frame):
            raise LoopDetectedError
        refused.append(describe_frame(frame))

    def reported(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def function(x: Any) -> Any:
            report(sys._getframe(1), x)  # pyright: ignore[reportPrivateUsage]
            return of(x)

        return function

    def rmul(x: torch.SymInt, other: Any) -> Any:
        repeats = type(other) is list and is_dynamic(x)
        return _repeated(other, x) if repeats else multiplied(x, other)

    def iter_(x: FakeTensor) -> Iterator[Any]:
        if x.ndim and is_dynamic(x.shape[0]):
            report(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return iterate(x)

    with (
        _LoopDetector(on_call),
        patch.object(torch.SymInt, "__index__", reported(number)),
        patch.object(torch.SymInt, "__int__", reported(number)),
        patch.object(torch.SymInt, "__rmul__", rmul),
        patch.object(torch.SymFloat, "__int__", reported(whole)),
        patch.object(torch.SymFloat, "__float__", reported(fraction)),
        patch.object(FakeTensor, "__iter__", iter_),
        patch.object(Stacked, "asks", staticmethod(report)),
    ):
        try:
            yield
        except Exception as e:
            if not refused or not is_violation(e):
                raise
            raise CaptureError(
                f"at {refused[0]}: a size of dynamic_shapes is used as a number, which would fix the size: write a `for` loop in a plain"
                " function, or compute with tensors"
            ) from e
