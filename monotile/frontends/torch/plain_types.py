"""`type(x) is torch.Tensor` in a model that is traced: a traced tensor is of a class of PyTorch's tracer, and yet the model's code takes it for a plain one.

Within `types_as_run`, the name `type` in the modules that the model's classes are from gives what it would when the model runs.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from monotile.frontends.torch.unchanged import modules_of


class _Asked(type):
    """Of the class that stands for `type`."""

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


@contextmanager
def types_as_run(model: torch.nn.Module) -> Generator[None]:
    """Within, the model's code sees no traced tensor's class."""
    modules = [m for m in modules_of(model) if "type" not in vars(m)]
    for module in modules:
        vars(module)["type"] = _Type
    try:
        yield
    finally:
        for module in modules:
            vars(module).pop("type", None)
