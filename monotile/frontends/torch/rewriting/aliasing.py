"""Alias analysis: which values of a graph share memory, and which arguments an operator updates in place."""

import operator
from collections.abc import Iterator
from typing import Any

from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

# Views or copies, depending on strides.
_BY_STRIDES = frozenset(
    {
        "aten.reshape",
        "aten.reshape_as",
        "aten.flatten",
        "aten.ravel",
        "aten.contiguous",
        "aten.to",
    }
)
# Their results may be their arguments or views of them, although their schemas do not say so.
UNSAID = frozenset(
    {
        "aten.dropout",
        "aten.einsum",
        "aten.unsafe_chunk",
        "aten.unsafe_split",
        "aten.unsafe_split_with_sizes",
    }
)


# Control flow, whose results are new.
_OF_SUBGRAPHS = frozenset(
    {
        "cond",
        "while_loop",
        "scan",
        "map_impl",
        "monotile.loop_begin.default",
        "monotile.loop_end.default",
    }
)


class Groups:
    """Groups of nodes that share memory; `of` is equal within a group."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}

    def of(self, node: fx.Node) -> fx.Node:
        while node in self._parent:
            node = self._parent[node]
        return node

    def join(self, x: fx.Node, y: fx.Node) -> None:
        x, y = self.of(x), self.of(y)
        if x is not y:
            self._parent[x] = y


def packet(node: fx.Node) -> str:
    return str(node.target).rpartition(".")[0]


def is_unsure(node: fx.Node) -> bool:
    return packet(node) in _BY_STRIDES or packet(node) in UNSAID


def sources(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments with which the results may share memory."""
    if node.op != "call_function" or str(node.target) in _OF_SUBGRAPHS:
        return
    if node.target is operator.getitem and str(node.all_input_nodes[0].target) in _OF_SUBGRAPHS:
        return
    if not isinstance(node.target, OpOverload) or packet(node) in UNSAID:
        yield from node.all_input_nodes[:1]
    elif any(r.alias_info for r in _schema(node.target).returns):
        for argument, value in _arguments(node):
            if argument.alias_info:
                yield from _nodes(value)


def changed(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that the operator updates in place."""
    if packet(node) == "aten.detach_":  # its values stay
        return
    if isinstance(node.target, OpOverload) and _schema(node.target).is_mutable:
        for argument, value in _arguments(node):
            if argument.alias_info and argument.alias_info.is_write:
                yield from _nodes(value)


def _arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """The arguments of the schema with their values."""
    assert isinstance(node.target, OpOverload)
    for k, argument in enumerate(_schema(node.target).arguments):
        value = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name)
        yield argument, value


def _schema(op: OpOverload) -> Any:
    return op._schema  # pyright: ignore[reportPrivateUsage]


def _nodes(value: Any) -> list[fx.Node]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, fx.Node)]
