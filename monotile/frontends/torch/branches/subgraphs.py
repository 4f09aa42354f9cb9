"""The nodes between two markers of a graph (`markers.py`), which become a subgraph: a branch of an `if`, or the body of a loop."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.rewriting.aliasing import changed, sources


def nodes_between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    found = list[fx.Node]()
    node = first.next
    while node is not last:
        found.append(node)
        node = node.next
    return found


def changed_outside(nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
    """The outer tensors that `nodes` update in place."""
    inside = set(nodes)
    todo = [x for n in nodes for x in changed(n)]
    while todo:
        node = todo.pop()
        if node in inside:
            todo += sources(node)
        else:
            yield node


def copy_nodes(nodes: Iterable[fx.Node], graph: fx.Graph, env: dict[fx.Node, fx.Node]) -> None:
    """Copies `nodes` to the end of `graph`, with the attributes that they read. env: maps nodes to their copies; those in it are not copied again."""
    for node in nodes:
        for x in node.all_input_nodes:
            if x.op == "get_attr" and x not in env:
                env[x] = graph.node_copy(x)
        if node not in env:
            env[node] = graph.node_copy(node, env.__getitem__)


def sizes_in(graph: fx.Graph, shape: Iterable[Any]) -> list[Any]:
    """`shape`, with nodes that read its symbolic sizes from placeholders of `graph`, where one has such a dimension."""
    places = {
        n.node.expr: (x, d)
        for x in graph.find_nodes(op="placeholder")
        if isinstance(x.meta["val"], torch.Tensor)
        for d, n in enumerate(x.meta["val"].shape)
        if isinstance(n, torch.SymInt)
    }
    found = list[Any]()
    for n in shape:
        place = places.get(n.node.expr) if isinstance(n, torch.SymInt) else None
        if place is None:
            found.append(n)
            continue
        found.append(graph.call_function(torch.ops.aten.sym_size.int, place))
        found[-1].meta["val"] = n
    return found


def line_of(node: fx.Node) -> str:
    """The user's source line, or the node's name."""
    return origin(node.stack_trace) or node.name
