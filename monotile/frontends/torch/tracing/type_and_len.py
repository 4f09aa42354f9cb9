"""`type(x) is torch.Tensor` and `len(x)` in a model that is traced: a traced tensor is of a class of PyTorch's tracer, and of a size that Python's own
`len`, which gives a number, would fix.

Within `builtins_as_eager`, these names in the modules that the model's classes are from give what they would when the model runs, or that size.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from monotile.frontends.torch.loops.stacked import Growing, Stacked
from monotile.frontends.torch.tracing.restored_state import modules_of


class _Asked(type):
    """Metaclass of the class that replaces `type`."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        if len(args) == 1 and type(args[0]) is FakeTensor:
            return torch.nn.Parameter if isinstance(args[0], torch.nn.Parameter) else torch.Tensor
        return type(*args, **named)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)

    def __eq__(cls, other: object) -> bool:
        return other is type or other is cls

    def __hash__(cls) -> int:
        return hash(type)


class _Type(metaclass=_Asked):
    """`type`, for traced tensors as for others."""


def length(x: Any) -> Any:
    """`len`, which keeps a dynamic size symbolic."""
    if type(x) in (Stacked, Growing):
        return x.length
    return x.shape[0] if type(x) is FakeTensor and x.ndim else len(x)


_BUILTINS = {"type": _Type, "len": length}


@contextmanager
def builtins_as_eager(model: torch.nn.Module) -> Generator[None]:
    """Within, `type` and `len` in the model's code give what they give in eager mode, with symbolic sizes."""
    own = [(vars(m), n) for m in modules_of(model) for n in _BUILTINS if n not in vars(m)]
    for names, name in own:
        names[name] = _BUILTINS[name]
    try:
        yield
    finally:
        for names, name in own:
            names.pop(name, None)
