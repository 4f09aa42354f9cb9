"""Prepares a call's arguments and results for PyTorch's exporter."""

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

Call = tuple[tuple[Any, ...], dict[str, Any]]


def distinct_tensors(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Call:
    """The example call with a separate tensor for each argument.

    The exporter merges arguments that are one tensor, or a tensor of the model, and gives a view an unknown shape if its base
    is an argument too.
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
def registered_dataclasses(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Generator[None, None, None]:
    """Registers the dataclasses in the arguments of a call of `model` as pytree containers, and those in its results once it has run.

    PyTorch's registry is global to the process; a class stays registered.
    """

    def results(_: object, __: object, found: object) -> None:
        register_dataclasses(found)

    _name_children()
    register_dataclasses((tuple(args), dict(kwargs)))
    hook = model.register_forward_hook(results)
    try:
        yield
    finally:
        hook.remove()


def _name_children() -> None:
    """Numbers the children of containers without keys: PyTorch's exporter needs names."""

    def by_number(flatten: Any) -> Any:
        def named(x: Any) -> tuple[list[tuple[pytree.SequenceKey[Any], Any]], Any]:
            children, context = flatten(x)
            return [(pytree.SequenceKey(k), y) for k, y in enumerate(children)], context

        return named

    for kind, node in list(pytree.SUPPORTED_NODES.items()):
        if node.flatten_with_keys_fn is None:
            pytree.SUPPORTED_NODES[kind] = node._replace(flatten_with_keys_fn=by_number(node.flatten_fn))  # fmt: skip


def register_dataclasses(value: object) -> None:
    """Registers the dataclasses in `value` as pytree containers."""
    kind = type(value)
    if dataclasses.is_dataclass(kind) and kind not in pytree.SUPPORTED_NODES:
        name = f"{kind.__module__}.{kind.__qualname__}"
        try:
            torch.export.register_dataclass(kind, serialized_type_name=name)
        except ValueError:  # another class of this name is registered
            torch.export.register_dataclass(kind)
    children, _ = pytree.tree_flatten(value, is_leaf=lambda x: x is not value)
    for child in children:
        if child is not value:
            register_dataclasses(child)
