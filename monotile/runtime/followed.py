"""Whether a model still has the parameters that its kernel reads.

A kernel reads them where they lay when the model was compiled, or where `load_parameters` said. `p.data = ...`, `model.to(...)`, a new Parameter
in the place of another: what the kernel reads is then no longer the model's. A call looks at a few of them, in turn, and says so once.
"""

import warnings
import weakref
from collections.abc import Iterable

import torch

from monotile.wrapped import is_wrapped

EACH = 2  # parameters that a call looks at: one or two microseconds
_CALLER = 3  # frames from `look` to whoever calls the compiled module


class Followed:
    """names: of the parameters and buffers of `model` that its kernel reads. The model itself is not kept."""

    def __init__(self, model: torch.nn.Module, names: Iterable[str]) -> None:
        self._places = [place for name in names if (place := _place(model, name)) is not None]
        self._pointers: list[int | None] = []
        self._next = 0
        self.agree()

    def agree(self) -> None:
        """What the model has now is what is meant."""
        self._pointers = [_pointer(*place) for place in self._places]

    def look(self) -> None:
        """Warns, once, where one of the next few parameters lies somewhere else."""
        first = self._next
        end = min(first + EACH, len(self._places))
        self._next = end if end < len(self._places) else 0
        for k in range(first, end):
            found = _pointer(*self._places[k])
            if found != self._pointers[k] and found is not None:
                name = self._places[k][2]
                self.agree()
                warnings.warn(
                    f"the model's parameter {name} was replaced (p.data = ..., model.to(...), assign=True), and the compiled kernel still reads"
                    " the old one: pass the new ones to load_parameters(model.state_dict()), or compile again",
                    stacklevel=_CALLER,
                )
                return


def _place(model: torch.nn.Module, name: str) -> "tuple[weakref.ref[torch.nn.Module], str, str] | None":  # fmt: skip
    path, _, attribute = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:  # of a tensor that another one holds
        return None
    x = _held(owner, attribute)
    return None if x is None or is_wrapped(x) else (weakref.ref(owner), attribute, name)


def _held(owner: torch.nn.Module, attribute: str) -> torch.Tensor | None:
    found = owner._parameters.get(attribute)  # pyright: ignore[reportPrivateUsage]
    return owner._buffers.get(attribute) if found is None else found  # pyright: ignore[reportPrivateUsage]


def _pointer(ref: "weakref.ref[torch.nn.Module]", attribute: str, _name: str) -> int | None:
    """Where the tensor lies; None where nobody has the model any more, or it has no such tensor."""
    owner = ref()
    x = None if owner is None else _held(owner, attribute)
    return None if x is None else x.data_ptr()
