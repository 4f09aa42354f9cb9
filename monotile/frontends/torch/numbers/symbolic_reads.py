"""Numbers that Python's `int`, `float` and `math` make of traced tensors stay tensors, as those of `item()` do.

These functions return numbers of Python's own, which a trace does not know. Where one is called on a tensor, the names in that module are replaced by
functions that give a tensor which stands for a number (`sizes/symbolic_builtins.py`), and the model is traced again. Such a number is no key of a
dictionary and has no text: a model that would use one as such is refused.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from torch._subclasses.fake_tensor import FakeTensor

from monotile.errors import CaptureError
from monotile.frontends.torch.branches.checks import ends_in_raise
from monotile.frontends.torch.loops.tensor_numbers import stands_for_number
from monotile.frontends.torch.numbers.example_values import ExampleValues
from monotile.frontends.torch.origin import describe_frame, is_users
from monotile.frontends.torch.sizes.symbolic_builtins import TensorsRead

_FRONTENDS = str(Path(__file__).parents[2])
_USES = {
    "__hash__": "a key of a dictionary or set",
    "__format__": "a part of a text",
    "__str__": "a text",
}


@contextmanager
def tensors_read_symbolically(replaced: Callable[[FrameType], None]) -> Generator[None]:
    """Within, `replaced` is called with each frame that makes a number of a traced tensor: it replaces the builtins there, and raises if that is new.
    Numbers that are replayed are left alone."""
    if ExampleValues.replaying:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(patch.object(TensorsRead, "symbolically", True))
        for name in ("__int__", "__index__", "__float__"):
            stack.enter_context(patch.object(FakeTensor, name, _reading(name, replaced)))
        for name in _USES:
            stack.enter_context(patch.object(FakeTensor, name, _refusing(name)))
        yield


def _reading(name: str, replaced: Callable[[FrameType], None]) -> Callable[[FakeTensor], Any]:
    plain = getattr(FakeTensor, name)

    def read(x: FakeTensor) -> Any:
        frame = _asking(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if x.constant is None and is_users(frame.f_code.co_filename):
            replaced(frame)
        return plain(x)

    return read


def _refusing(name: str) -> Callable[..., Any]:
    plain = getattr(FakeTensor, name)

    def used(x: FakeTensor, *given: Any) -> Any:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        if stands_for_number(x) and frame is _asking(frame) and is_users(frame.f_code.co_filename):
            if name != "__hash__" and ends_in_raise(frame):
                return "<number>"  # in the message of an error: the model does not go on
            raise CaptureError(
                f"at {describe_frame(frame)}: a number that a call's data decide is {_USES[name]}: return the tensor, and look it up after the model"
            )
        return plain(x, *given)

    return used


def _asking(frame: FrameType) -> FrameType:
    """The frame that is not of Monotile's front end: `frame`, or one of its callers."""
    while frame.f_code.co_filename.startswith(_FRONTENDS) and frame.f_back:
        frame = frame.f_back
    return frame
