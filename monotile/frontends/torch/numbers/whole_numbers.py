"""Whole numbers in floating-point tensors of a graph, such as counts of a mask."""

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from monotile.frontends.torch.rewriting.aliasing import Groups, changed, packet, sources

# Operators that give whole numbers for whole numbers.
_WHOLE = frozenset(
    f"aten.{name}"
    for name in (
        *("add", "sub", "rsub", "mul", "neg", "abs", "sign", "square", "matmul", "mm", "bmm"),
        *("sum", "cumsum", "max", "min", "amax", "amin", "maximum", "minimum", "clamp", "relu"),
        *("to", "_to_copy", "clone", "contiguous", "detach", "alias", "select", "slice", "where"),
        *("view", "reshape", "flatten", "squeeze", "unsqueeze", "expand", "repeat", "permute"),
        *("transpose", "t", "stack", "cat", "masked_fill", "index_select", "gather", "index"),
    )
)


def is_whole_number(node: fx.Node) -> bool:
    """Whether these numbers are computed from integers and masks by sums, products and the like. Below 2^24, float32 represents them exactly, in any order
    of summation."""
    groups = Groups()
    for x in node.graph.nodes:
        for source in sources(x):
            groups.join(x, source)
    written = {groups.of(x) for by in node.graph.nodes for x in changed(by)}
    todo, seen = [node], {node}
    while todo:
        node = todo.pop()
        if not is_float(node.meta.get("val")):
            continue
        made = node.op == "call_function" and packet(node) in _WHOLE and node.all_input_nodes
        if not made or groups.of(node) in written or not _has_whole_numbers(node):
            return False
        todo += [n for n in node.all_input_nodes if n not in seen]
        seen.update(node.all_input_nodes)
    return True


def is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _has_whole_numbers(node: fx.Node) -> bool:
    given: list[Any] = pytree.tree_leaves((node.args, node.kwargs))
    return all(float(x).is_integer() for x in given if isinstance(x, float))
