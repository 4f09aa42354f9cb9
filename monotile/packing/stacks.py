"""Stacks of matrices with packed weights: the experts of a mixture, whose module holds one parameter [experts, out, in] for all."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from monotile.packing.format import Format
from monotile.packing.layer import PackedMatrix

ENDING = "_packed"
HELD = "_packed_stacks"  # of such a class: the original one, and the names


class Stack(NamedTuple):
    """Parameter `name` of `module`: [experts, out, in], or transposed [experts, in, out]."""

    module: nn.Module
    name: str
    transposed: bool

    @property
    def parameter(self) -> nn.Parameter:
        return self.module.get_parameter(self.name)

    @property
    def weight(self) -> Tensor:
        """[experts, out, in], a view."""
        weight = self.parameter.detach()
        return weight.mT if self.transposed else weight


class PackedStack(PackedMatrix):
    """Matrices [experts, out, in] that PyTorch operators decode whenever they are read: the rows of all, one below the other, packed.
    transposed: they are read as [experts, in, out]."""

    def __init__(
        self,
        format: Format,
        shape: tuple[int, int, int],
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        transposed: bool = False,
    ) -> None:
        super().__init__(format, (shape[0] * shape[1], shape[2]), tensors, dtype)
        self.experts, self.transposed = shape[0], transposed

    @property
    def matrices(self) -> tuple[int, int, int]:
        """Experts, outputs, inputs."""
        rows, columns = self.shape
        return self.experts, rows // self.experts, columns

    def decoded(self) -> Tensor:
        """The matrices as their module reads them."""
        weight = super().decoded().unflatten(0, (self.experts, -1))
        return weight.mT if self.transposed else weight

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.matrices))}, {self.stored()}"


def is_experts(module: nn.Module) -> bool:
    """Whether it is the module of a mixture's experts in transformers, of any model. Recognised by its attributes, as transformers need not
    be installed."""
    said = (getattr(module, name, None) for name in ("is_transposed", "has_gate"))
    return all(isinstance(x, bool) for x in said)


def stacks_of(module: nn.Module) -> Iterator[Stack]:
    """The stacks of matrices that a module of experts holds."""
    if is_experts(module):
        for name, p in module.named_parameters(recurse=False):
            if p.dim() == 3:
                yield Stack(module, name, bool(module.is_transposed))


def hold(module: nn.Module, name: str, stack: PackedStack) -> None:
    """Makes `module` read `stack` in place of its parameter `name`."""
    delattr(module, name)
    module.add_module(name + ENDING, stack)
    kind, names = getattr(type(module), HELD, (type(module), ()))
    module.__class__ = _holder(kind, (*names, name))


def _holder(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The subclass of `kind` whose attributes `names` are decoded stacks."""

    def read(name: str) -> property:
        return property(lambda module: getattr(module, name + ENDING).decoded())

    def reduce(module: nn.Module, _protocol: Any) -> tuple[Any, ...]:
        return _made, (kind, names), module.__dict__

    members = {name: read(name) for name in names}
    about = {HELD: (kind, names), "__reduce_ex__": reduce, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), members | about)


def _made(kind: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """An empty module of that subclass: for copies and pickles."""
    holder = _holder(kind, names)
    return holder.__new__(holder)
