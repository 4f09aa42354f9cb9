"""What Monotile asks of PyTorch's pytree structures."""

from collections.abc import Callable, Iterator
from itertools import islice

import torch.utils._pytree as pytree

from monotile.runtime.objects import Parts, together

Constructor = Callable[[Iterator[object]], object]


def children(tree: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    method = getattr(tree, "children", None)
    found = method() if method is not None else getattr(tree, "children_specs")  # noqa: B009  # torch 2.9
    return list(found)


def is_leaf(tree: pytree.TreeSpec) -> bool:
    return tree.num_nodes == 1 and tree.num_leaves == 1


def constructor(tree: pytree.TreeSpec) -> Constructor:
    """What makes `tree` from its leaves in order: `tree_unflatten` with all that is known beforehand done, and objects
    that were taken apart together again."""
    if is_leaf(tree):
        return next
    parts = [constructor(c) for c in children(tree)]
    if tree.type in (tuple, list) and all(is_leaf(c) for c in children(tree)):
        build, count = tree.type, len(parts)
        return lambda leaves: build(islice(leaves, count))
    if tree.type is tuple:
        return lambda leaves: tuple([make(leaves) for make in parts])
    if tree.type is list:
        return lambda leaves: [make(leaves) for make in parts]
    context = tree.context
    if tree.type is Parts:
        return lambda leaves: together([make(leaves) for make in parts], context)
    unflatten = pytree.SUPPORTED_NODES[tree.type].unflatten_fn
    return lambda leaves: unflatten([make(leaves) for make in parts], context)


def alike(a: pytree.TreeSpec, b: pytree.TreeSpec) -> bool:
    """Whether the structures are equal, but for what objects hold besides tensors (of what dtype they are, say)."""
    if a.type is not Parts:
        return (
            (a.type, a.context) == (b.type, b.context)
            and len(children(a)) == len(children(b))
            and all(map(alike, children(a), children(b)))
        )
    return (
        b.type is Parts
        and (a.context.type, a.context.names) == (b.context.type, b.context.names)
        and all(map(alike, children(a), children(b)))
    )


def describe_call(tree: pytree.TreeSpec) -> str:
    """The structure of (args, kwargs) as a person would write the call, "*" for a leaf: "(*, [*, *], mask=*)"."""
    positional, keywords = children(tree)
    parts = [_describe(c) for c in children(positional)]
    named = zip(keywords.context, children(keywords), strict=True)
    return f"({', '.join([*parts, *(f'{name}={_describe(c)}' for name, c in named)])})"


def _describe(tree: pytree.TreeSpec) -> str:
    if is_leaf(tree):
        return "*"
    inner = [_describe(c) for c in children(tree)]
    if tree.type is tuple:
        return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
    if tree.type is list:
        return f"[{', '.join(inner)}]"
    if tree.type is dict:
        return (
            "{" + ", ".join(f"{k!r}: {v}" for k, v in zip(tree.context, inner, strict=True)) + "}"
        )
    return f"{tree.type.__name__}({', '.join(inner)})"
