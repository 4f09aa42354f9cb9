"""Helpers for PyTorch's pytrees."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import cast

import torch
import torch.utils._pytree as pytree

from monotile.runtime.objects import Parts, rebuild

Constructor = Callable[[Iterator[object]], object]


def is_leaf(tree: pytree.TreeSpec) -> bool:
    return tree.num_nodes == 1 and tree.num_leaves == 1


def constructor(tree: pytree.TreeSpec) -> Constructor:
    """A function that builds `tree` from its leaves: a precomputed `tree_unflatten`, which also rebuilds flattened objects."""
    if is_leaf(tree):
        return next
    parts = [constructor(c) for c in tree.children()]
    if tree.type in (tuple, list) and all(is_leaf(c) for c in tree.children()):
        build, count = tree.type, len(parts)
        return lambda leaves: build(islice(leaves, count))
    if tree.type is tuple:
        return lambda leaves: tuple([make(leaves) for make in parts])
    if tree.type is list:
        return lambda leaves: [make(leaves) for make in parts]
    context = tree.context
    if tree.type is Parts:
        return lambda leaves: rebuild([make(leaves) for make in parts], context)
    unflatten = pytree.SUPPORTED_NODES[tree.type].unflatten_fn
    ordered = isinstance(tree.type, type) and issubclass(tree.type, OrderedDict)
    if ordered and (copy := _copier(unflatten, context, len(parts))):
        return lambda leaves: copy([make(leaves) for make in parts])
    return lambda leaves: unflatten([make(leaves) for make in parts], context)


def _copier(
    unflatten: Callable[[list[object], object], object], context: object, count: int
) -> Callable[[list[object]], object] | None:
    """`unflatten` without running a class's `__init__` (15 us for a Hugging Face output).

    None if an object is more than an ordered dict and its attributes, each of them a child or None.
    """
    marks: list[object] = [torch.empty(0) for _ in range(count)]
    made = unflatten(marks, context)
    if not isinstance(made, OrderedDict):
        return None
    kind, items = type(made), cast("OrderedDict[object, object]", made)
    number = {id(mark): k for k, mark in enumerate(marks)}
    keys, values = list(items), list(items.values())
    attributes = vars(made)
    held = {name: number.get(id(x)) for name, x in attributes.items() if x is not None}
    if [number.get(id(v)) for v in values] != list(range(count)) or None in held.values():
        return None
    empty = dict.fromkeys(attributes)

    def copy(parts: list[object]) -> object:
        new = kind.__new__(kind)
        for key, part in zip(keys, parts, strict=True):
            OrderedDict.__setitem__(new, key, part)
        new.__dict__.update(empty)
        for name, k in held.items():
            new.__dict__[name] = parts[k or 0]
        return new

    return copy


def same_structure(a: pytree.TreeSpec, b: pytree.TreeSpec) -> bool:
    """Whether the structures are equal, except for attributes of objects that are not tensors (such as a dtype)."""
    if a.type is not Parts:
        return (
            (a.type, a.context) == (b.type, b.context)
            and len(a.children()) == len(b.children())
            and all(map(same_structure, a.children(), b.children()))
        )
    return (
        b.type is Parts
        and (a.context.type, a.context.names) == (b.context.type, b.context.names)
        and all(map(same_structure, a.children(), b.children()))
    )


def describe_call(tree: pytree.TreeSpec) -> str:
    """The structure of (args, kwargs) written as a call, with "*" for a leaf: "(*, [*, *], mask=*)"."""
    positional, keywords = tree.children()
    parts = [_describe(c) for c in positional.children()]
    named = zip(keywords.context, keywords.children(), strict=True)
    return f"({', '.join([*parts, *(f'{name}={_describe(c)}' for name, c in named)])})"


def _describe(tree: pytree.TreeSpec) -> str:
    if is_leaf(tree):
        return "*"
    inner = [_describe(c) for c in tree.children()]
    if tree.type is tuple:
        return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
    if tree.type is list:
        return f"[{', '.join(inner)}]"
    if tree.type is dict:
        return (
            "{" + ", ".join(f"{k!r}: {v}" for k, v in zip(tree.context, inner, strict=True)) + "}"
        )
    return f"{tree.type.__name__}({', '.join(inner)})"
