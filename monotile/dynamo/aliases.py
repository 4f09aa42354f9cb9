"""Results of a graph that are views of its inputs or of each other.

The results of a kernel are separate tensors. To preserve aliasing, the kernel returns the base tensors, and PyTorch makes the
views of them, which launches nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from monotile.dynamo.memory import SYMBOLS, Memory, Place, places
from monotile.frontends.torch.rewriting.layouts import Layout


class Cut(NamedTuple):
    """kernel: the graph, returning the base tensors of its results, each with its dimensions in memory order.
    views: makes all results from the graph's inputs followed by the kernel's results."""

    kernel: fx.GraphModule
    views: fx.GraphModule


def separate(module: fx.GraphModule, args: Sequence[Any]) -> Cut | None:
    """None if the results are separate row-major tensors. Raises ValueError if a result shares memory other than as a view
    of an input or of another result. args: of a call."""
    where = places(module, args)
    owner = _owners(where)
    (output,) = module.graph.find_nodes(op="output")
    results = [n for n in output.all_input_nodes if n in owner]
    shared = Counter(owner[n] for n in results)
    views = [n for n in results if owner[n].op == "placeholder" or shared[owner[n]] > 1]
    chains = _chains(views, owner)
    for n in {owner[n] for n in views if owner[n] is not n}:
        if n.op != "placeholder" and not _dense(where[n]):
            raise ValueError(f"results are views of {n.name}, which has gaps in memory")
    given = {owner[n] for n in views} | {n for n in results if n not in views}
    given = [n for n in module.graph.nodes if n in given and n.op != "placeholder"]
    orders = {n: order for n in given if (order := _order(where[n]))}
    if not orders and all(n.op == "placeholder" for n in views):
        return None
    return Cut(_only(module, given, orders), _rest(module, given, orders, chains))


def _owners(where: Mapping[fx.Node, tuple[Place, ...]]) -> dict[fx.Node, fx.Node]:
    """The first node with the same memory, for every node whose tensors share one memory."""
    first: dict[Memory, fx.Node] = {}
    out: dict[fx.Node, fx.Node] = {}
    for node, found in where.items():
        memories = {p.memory for p in found}
        if len(memories) == 1:
            out[node] = first.setdefault(memories.pop(), node)
    return out


def _order(where: tuple[Place, ...]) -> list[int] | None:
    """The dimensions of a dense tensor in memory order; None if it is row-major or not dense."""
    layout = where[0].layout
    if not _dense(where) or layout is None or _contiguous(layout, range(len(layout.shape))):
        return None
    return layout.order


def _dense(where: tuple[Place, ...]) -> bool:
    """Whether it is known to be one dense tensor."""
    (layout, *more) = (p.layout for p in where)
    return layout is not None and not more and _contiguous(layout, layout.order)


def _contiguous(layout: Layout, order: Sequence[int]) -> bool:
    shape = torch.empty_strided(layout.shape, layout.stride, device="meta")
    return shape.permute(tuple(order)).is_contiguous()


def _chains(views: list[fx.Node], owner: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """The nodes between the views and their bases."""
    found: set[fx.Node] = set()
    todo = [n for n in views if owner[n] is not n]
    while todo:
        node = todo.pop()
        if node in found:
            continue
        if not _in_place(node) and _name(node) not in _VIEWS:
            raise ValueError(f"a result shares memory through {_name(node)}")
        found.add(node)
        todo += [n for n in node.all_input_nodes if owner.get(n, n) is not n]
    return found


_VIEWS = frozenset(
    """
    adjoint alias as_strided as_tensor atleast_1d atleast_2d atleast_3d bfloat16 bool broadcast_to chunk contiguous cpu cuda detach
    diagonal double dropout dsplit expand expand_as flatten float getattr getitem half hsplit int long moveaxis movedim
    narrow permute positive ravel real reshape reshape_as select slice split split_with_sizes squeeze swapaxes swapdims t
    tensor_split to transpose type type_as unbind unflatten unfold unsqueeze view view_as vsplit
    """.split()
)


def _in_place(node: fx.Node) -> bool:
    """Whether `node` updates its first argument in place and returns it. (The kernel has done so already.)"""
    return (node.op == "call_method" and _name(node).endswith("_")) or (
        node.op == "call_function" and _name(node) in _ASSIGNMENTS
    )


_ASSIGNMENTS = frozenset({"iadd", "isub", "imul", "itruediv", "ifloordiv", "iand", "ior", "ixor"})


def _name(node: fx.Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.partition(".")[0]


def _only(
    module: fx.GraphModule, given: list[fx.Node], orders: Mapping[fx.Node, list[int]]
) -> fx.GraphModule:
    """`module` with the results `given`, their dimensions in those orders."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copied)
    graph.output(tuple(_permuted(graph, copied[n], orders.get(n)) for n in given))
    return fx.GraphModule(module, graph)


def _permuted(graph: fx.Graph, node: fx.Node, order: list[int] | None) -> fx.Node:
    return graph.call_method("permute", (node, *order)) if order else node


def _rest(
    module: fx.GraphModule,
    given: list[fx.Node],
    orders: Mapping[fx.Node, list[int]],
    chains: set[fx.Node],
) -> fx.GraphModule:
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        copied[node] = graph.node_copy(node)
    made = [graph.placeholder(f"given_{k}") for k in range(len(given))]
    for node, x in zip(given, made, strict=True):
        order = orders.get(node)
        copied[node] = _permuted(graph, x, order and [order.index(d) for d in range(len(order))])

    def copy(node: fx.Node) -> fx.Node:
        if node not in copied:
            for x in node.all_input_nodes:
                if x not in copied and not _is_number(x):
                    raise ValueError(f"a view, {node.name}, depends on {x.name}")
                copy(x)
            copied[node] = graph.node_copy(node, lambda n: copied[n])
        return copied[node]

    (output,) = module.graph.find_nodes(op="output")
    for node in module.graph.nodes:
        if node not in chains or node in copied:
            continue
        if not _in_place(node):
            copy(node)
        elif (updated := node.all_input_nodes[0]) in copied:
            copied[node] = copied[updated]
        else:
            raise ValueError(f"a view, {node.name}, depends on {updated.name}")
    graph.output(map_arg(output.args[0], copy))
    return fx.GraphModule(module, graph)


def _is_number(node: fx.Node) -> bool:
    """Whether it is a number, or several, as those that are computed from sizes."""
    found = pytree.tree_leaves(node.meta.get("example_value"))
    return bool(found) and all(isinstance(x, int | float | SYMBOLS) for x in found)
