"""Tensors that are made of tensors, such as quantised weights: PyTorch's traceable wrapper subclasses, of whatever library."""

from collections.abc import Iterator, Mapping

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def is_wrapped(x: object) -> bool:
    """Whether `x` only stands for tensors that it holds, and has no memory of its own."""
    return is_traceable_wrapper_subclass(x)


def plain_tensors(name: str, x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that hold the content of `x`, innermost, with their names: `name` and the attributes, by dots. Of a plain one, itself."""
    if not is_traceable_wrapper_subclass(x):
        yield name, x
        return
    for attribute in x.__tensor_flatten__()[0]:
        yield from plain_tensors(f"{name}.{attribute}", getattr(x, attribute))


def all_plain(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`state` with what its tensors hold."""
    return {n: x for name, whole in state.items() for n, x in plain_tensors(name, whole)}
