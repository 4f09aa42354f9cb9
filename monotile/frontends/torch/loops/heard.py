"""Where a model that is traced begins a loop that takes as many turns as a size of the call says.

PyTorch would make that size a number. What hears of it first has the loop's code converted (`branches/choices.py`), and the model traced again.
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
from monotile.frontends.torch.loops.spans import listed, of_numbers, stands_for_number
from monotile.frontends.torch.loops.stacked import Run, Stacked, interleaved, is_open
from monotile.frontends.torch.origin import describe_frame, is_users
from monotile.frontends.torch.sizes.narrowed import is_violation
from monotile.frontends.torch.sizes.open_operators import opened


class BegunError(BaseException):
    """A loop begins that has to be converted. No Exception, which the model might catch."""


class _Rows(TorchFunctionMode):
    """Within, what a tensor is split into may be as many as a size says. called: is told of the frame that calls a function of PyTorch's."""

    def __init__(self, called: Callable[[FrameType], None] | None = None) -> None:
        super().__init__()
        self._called = called

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        named, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "__get__" and not stands_for_number(args[0]):  # most calls, as for a shape
            return func(*args, **named)
        if self._called is not None and not torch.compiler.is_dynamo_compiling():
            self._called(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if name in ("squeeze", "squeeze_") and isinstance(args[0], torch.Tensor):
            _ask_for_one(*args, **named)
        if name in ("unbind", "split", "chunk") and args and isinstance(args[0], torch.Tensor):
            found = _rows(name, *args, **named)
            if found is not None:
                return found
        if (
            name in ("tensor", "as_tensor")
            and args
            and any(map(stands_for_number, pytree.tree_leaves(args[0])))
        ):
            return listed(*args, **named)
        if (found := opened(name, args, named)) is not None:
            return found
        if any(map(stands_for_number, args)):
            return of_numbers(func, args, named)
        return func(*args, **named)


def _ask_for_one(x: torch.Tensor, dim: Any = None) -> None:
    """As a model that asks whether these dimensions are 1 (`sizes/asked.py`)."""
    every = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    for d in every:
        bool(is_open(x.shape[d]) and x.shape[d] == 1)


def _rows(name: str, x: torch.Tensor, *args: Any, dim: int = 0, **named: Any) -> Stacked | None:
    """The rows of `x`, if they are as many as a size says; None if PyTorch may split it."""
    given: list[Any] = [*named.values(), *args]
    places = given if name == "unbind" else given[1:]
    dim = (places[0] if places else dim) % max(x.ndim, 1)
    if not x.ndim or not is_open(x.shape[dim]):
        return None
    if name == "split" and (is_open(given[0]) or given[0] != 1):
        return None
    size: Any = x.shape[dim]
    parts: Any = given[0] if name == "chunk" else size
    if not (is_open(parts) and parts.node.expr == size.node.expr):
        return None
    rows = x.movedim(dim, 0)
    return Stacked([Run(size, rows if name == "unbind" else rows.unsqueeze(dim + 1))])


def _repeated(items: list[Any], count: torch.SymInt) -> Stacked:
    """`items * count`."""

    def each(x: Any) -> Any:
        return x.unsqueeze(0).expand(count, *x.shape)

    values = [pytree.tree_map_only(torch.Tensor, each, x) for x in items]
    return Stacked([interleaved(values, count)] if values else [])


@contextmanager
def loops_heard(
    turn: Callable[[FrameType], bool], called: Callable[[FrameType], None] | None = None
) -> Generator[None]:
    """Within, `turn` is told of the frame that may begin such a loop, or makes another number of a size; BegunError is raised where it says so. Raises
    CaptureError where the size cannot be left open for what it refuses. called: is told of frames that call functions of PyTorch's."""
    number, iterate = torch.SymInt.__index__, FakeTensor.__iter__
    whole, fraction = torch.SymFloat.__int__, torch.SymFloat.__float__
    refused: list[str] = []
    multiplied: Any = torch.SymInt.__rmul__

    def ask(frame: FrameType) -> None:
        if not is_users(frame.f_code.co_filename):
            return
        if turn(frame):
            raise BegunError
        refused.append(describe_frame(frame))

    def index(x: torch.SymInt) -> int:
        if is_open(x):
            ask(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return number(x)

    def rmul(x: torch.SymInt, other: Any) -> Any:
        return _repeated(other, x) if type(other) is list and is_open(x) else multiplied(x, other)

    def int_(x: torch.SymFloat) -> int:
        if is_open(x):
            ask(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return whole(x)

    def float_(x: torch.SymFloat) -> float:
        if is_open(x):
            ask(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return fraction(x)

    def iter_(x: FakeTensor) -> Iterator[Any]:
        if x.ndim and is_open(x.shape[0]):
            ask(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return iterate(x)

    with (
        _Rows(called),
        patch.object(torch.SymInt, "__index__", index),
        patch.object(torch.SymInt, "__int__", index),
        patch.object(torch.SymInt, "__rmul__", rmul),
        patch.object(torch.SymFloat, "__int__", int_),
        patch.object(torch.SymFloat, "__float__", float_),
        patch.object(FakeTensor, "__iter__", iter_),
        patch.object(Stacked, "asks", staticmethod(ask)),
    ):
        try:
            yield
        except Exception as e:
            if not refused or not is_violation(e):
                raise
            raise CaptureError(
                f"at {refused[0]}: a size of dynamic_shapes is asked for as a number, which one kernel cannot leave open: write a `for` loop in a plain"
                " function, or compute with tensors"
            ) from e
