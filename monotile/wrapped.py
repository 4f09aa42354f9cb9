"""Unwraps tensors that are made of tensors: PyTorch's traceable wrapper subclasses, such as quantised weights of any library, and complex
numbers."""

from collections.abc import Iterator, Mapping

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

NESTED = (
    "nested tensors are not compiled: pass x.values() and x.offsets(), and use torch.nn.attention.varlen, which takes"
    " cumulative lengths, for attention"
)

_REAL = "_monotile_real"  # attribute of a complex tensor


def is_nested(x: object) -> bool:
    """Whether `x` is one of `torch.nested`, of either layout."""
    return isinstance(x, torch.Tensor) and x.is_nested


def is_wrapped(x: object) -> bool:
    """Whether `x` only stands for tensors that it holds, and has no memory of its own."""
    return is_traceable_wrapper_subclass(x)


def plain_tensors(name: str, x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The innermost tensors that hold the content of `x`, with their names: `name` and the attributes, separated by dots. For a plain
    tensor itself; for a complex one its components, as in `real_of`."""
    if not is_traceable_wrapper_subclass(x):
        yield name, real_of(x)
        return
    for attribute in x.__tensor_flatten__()[0]:
        yield from plain_tensors(f"{name}.{attribute}", getattr(x, attribute))


def real_of(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor's memory as real numbers, with a last dimension of 2; any other tensor unchanged."""
    if not x.is_complex():
        return x
    known: torch.Tensor | None = getattr(x, _REAL, None)
    return torch.view_as_real(x.resolve_conj()) if known is None else known


def complex_of(x: torch.Tensor) -> torch.Tensor:
    """The complex tensor of which `real_of` gives `x` itself."""
    found = torch.view_as_complex(x)
    setattr(found, _REAL, x)
    return found


def all_plain(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`state` with wrapped tensors replaced by the tensors that they hold."""
    return {n: x for name, whole in state.items() for n, x in plain_tensors(name, whole)}
