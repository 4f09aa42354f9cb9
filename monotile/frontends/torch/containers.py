"""A call's arguments and results as PyTorch's exporter wants them."""

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

Call = tuple[tuple[Any, ...], dict[str, Any]]


def apart(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """The example call with a tensor of its own for each argument.

    The exporter takes one tensor that is passed twice, or that the model holds as well, for one argument; and
    a view for one of unknown shape, if what it views is passed as well.
    """
    seen = {id(x) for held in (model.parameters(), model.buffers()) for x in held}

    def own(x: object) -> object:
        if isinstance(x, torch.Tensor):
            seen_before = id(x) in seen
            seen.add(id(x))
            if seen_before or x._is_view():
                return x.detach()
        return x

    call: Call = pytree.tree_map(own, (tuple(args), dict(kwargs)))
    return call


@contextmanager
def dataclasses_known(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Generator[None, None, None]:
    """Dataclasses in a call of `model` are containers, those of the results once it is called.

    PyTorch keeps one list of containers for the process; a class stays there.
    """

    def results(_: object, __: object, found: object) -> None:
        _register(found)

    _register((tuple(args), dict(kwargs)))
    hook = model.register_forward_hook(results)
    try:
        yield
    finally:
        hook.remove()


def _register(value: object) -> None:
    """Makes containers of the dataclasses in `value`."""
    kind = type(value)
    if dataclasses.is_dataclass(kind) and kind not in pytree.SUPPORTED_NODES:
        name = f"{kind.__module__}.{kind.__qualname__}"
        try:
            torch.export.register_dataclass(kind, serialized_type_name=name)
        except ValueError:  # another class was called so
            torch.export.register_dataclass(kind)
    children, _ = pytree.tree_flatten(value, is_leaf=lambda x: x is not value)
    for child in children:
        if child is not value:
            _register(child)
