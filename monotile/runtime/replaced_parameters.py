"""Detects that a model has replaced parameters that its kernel reads.

A kernel reads the tensors that the model had when it was compiled, or those given to `load_parameters`. After `p.data = ...`,
`model.to(...)` or the assignment of a new Parameter, the kernel's tensors are no longer the model's. Each call checks a few of them, in
turn, and warns once. There is no warning if the new ones have another dtype or are on another device (`model.double()` makes a
reference of it, `model.cpu()` frees memory). If they have a new address with the same values, as after `model.double().float()`, the kernel
reads the new ones.
"""

import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

import torch

from monotile.wrapped import is_wrapped

EACH = 2  # parameters that a call checks: one or two microseconds
_CALLER = 3  # frames from `check` to the caller of the compiled module


class Reader(Protocol):
    """Reads parameters, by their names."""

    def reads_equal(self, name: str, x: torch.Tensor) -> bool: ...
    def load_parameters(self, state: Mapping[str, torch.Tensor]) -> None: ...


class _Place(NamedTuple):
    """The attribute of a module that is a parameter or buffer of the model. name: in the model's `state_dict`."""

    owner: weakref.ref[torch.nn.Module]
    attribute: str
    name: str

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor; None if the model no longer exists, or has no such tensor."""
        owner = self.owner()
        if owner is None:
            return None
        found = owner._parameters.get(self.attribute)  # pyright: ignore[reportPrivateUsage]
        return owner._buffers.get(self.attribute) if found is None else found  # pyright: ignore[reportPrivateUsage]


class ReplacementCheck:
    """Checks whether `model` still has the parameters and buffers `names` that its kernel reads. It holds no reference to the model."""

    def __init__(self, model: torch.nn.Module, names: Iterable[str]) -> None:
        self._places = list(_places(model, names))
        self._kinds = [_kind(place.tensor) for place in self._places]
        self._pointers: list[int | None] = []
        self._next = 0
        self.accept()

    def accept(self) -> None:
        """Takes the model's present tensors as those that the kernel reads."""
        tensors = (place.tensor for place in self._places)
        self._pointers = [None if x is None else x.data_ptr() for x in tensors]

    def check(self, reader: Reader) -> None:
        """Warns, once, if one of the next few parameters has another address and other values than those that `reader` reads."""
        first = self._next
        end = min(first + EACH, len(self._places))
        self._next = end if end < len(self._places) else 0
        for k in range(first, end):
            x = (place := self._places[k]).tensor
            if x is not None and x.data_ptr() != self._pointers[k]:
                if (
                    x.is_cuda and torch.cuda.is_current_stream_capturing()
                ):  # when no values can be looked at
                    return
                self.accept()
                if _kind(x) != self._kinds[k] or self._moved(reader):
                    return
                warnings.warn(
                    f"the model's parameter {place.name} was replaced (p.data = ..., model.to(...), assign=True), and the compiled kernel still"
                    " reads the old one: pass the new ones to load_parameters(model.state_dict()), or compile again",
                    stacklevel=_CALLER,
                )
                return

    def _moved(self, reader: Reader) -> bool:
        """Whether all parameters only have new addresses; `reader` then reads these from now on."""
        found = dict[str, torch.Tensor]()
        for place, kind in zip(self._places, self._kinds, strict=True):
            if (x := place.tensor) is not None and _kind(x) == kind:
                found[place.name] = x
        if not all(reader.reads_equal(name, x) for name, x in found.items()):
            return False
        reader.load_parameters(found)
        return True


def _kind(x: torch.Tensor | None) -> tuple[torch.dtype, torch.device] | None:
    return None if x is None else (x.dtype, x.device)


def _places(model: torch.nn.Module, names: Iterable[str]) -> Iterator[_Place]:
    """The attributes that hold the named tensors, except tensors of wrapper subclasses and those that another tensor holds."""
    for name in names:
        path, _, attribute = name.rpartition(".")
        with suppress(AttributeError):  # the path is one into a tensor
            place = _Place(weakref.ref(model.get_submodule(path)), attribute, name)
            if place.tensor is not None and not is_wrapped(place.tensor):
                yield place
