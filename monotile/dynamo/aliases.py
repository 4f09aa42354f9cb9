"""Results of a graph that are views of its inputs or of each other.

A kernel gives tensors of their own. So that writing to one result is seen in what shares its memory, the kernel
gives the tensors that were viewed, and the views are taken of these by PyTorch, which launches nothing.
"""

from collections import Counter
from typing import NamedTuple

import torch
from torch import fx
from torch.fx.node import map_arg


class Cut(NamedTuple):
    """kernel: the graph with `bases`, the tensors that are viewed, after its other results.
    views: makes all of the results of the graph's inputs, then of the kernel's results."""

    kernel: fx.GraphModule
    views: fx.GraphModule


def separate(module: fx.GraphModule) -> Cut | None:
    """None where no result is a view of an input or of another result. Raises ValueError where a result shares
    memory in another way."""
    owner = _owners(module.graph)
    (output,) = module.graph.find_nodes(op="output")
    results = [n for n in output.all_input_nodes if n in owner]
    shared = Counter(owner[n] for n in results)
    views = [n for n in results if owner[n].op == "placeholder" or shared[owner[n]] > 1]
    if all(n.op == "placeholder" for n in views):
        return None
    chains = _chains(views, owner)
    given = {owner[n] for n in views} | {n for n in results if n not in views}
    given = [n for n in module.graph.nodes if n in given and n.op != "placeholder"]
    return Cut(_only(module, given), _rest(module, given, chains))


def _owners(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Of every node that is a tensor, or several with one memory, the first node with its memory."""
    first: dict[int, fx.Node] = {}
    out: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        memories = _memories(node.meta.get("example_value", node.meta.get("val")))
        if len(memories) == 1:
            out[node] = first.setdefault(memories.pop(), node)
    return out


def _memories(value: object) -> set[int]:
    if isinstance(value, tuple | list):
        return set[int]().union(*map(_memories, value))
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return {value.untyped_storage()._cdata}  # pyright: ignore[reportPrivateUsage]
    return set()


def _chains(views: list[fx.Node], owner: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """The nodes between the views and what they are views of."""
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
    alias as_strided broadcast_to chunk contiguous cpu cuda detach diagonal dropout expand expand_as flatten float
    getattr getitem hsplit movedim narrow permute real reshape reshape_as select slice split split_with_sizes squeeze
    swapaxes swapdims t tensor_split to transpose type type_as unbind unflatten unfold unsqueeze view view_as vsplit
    """.split()
)


def _in_place(node: fx.Node) -> bool:
    """Whether `node` changes its first argument and gives it back. (The kernel has done so already.)"""
    return (node.op == "call_method" and _name(node).endswith("_")) or (
        node.op == "call_function" and _name(node) in _ASSIGNMENTS
    )


_ASSIGNMENTS = frozenset({"iadd", "isub", "imul", "itruediv", "ifloordiv", "iand", "ior", "ixor"})


def _name(node: fx.Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.partition(".")[0]


def _only(module: fx.GraphModule, given: list[fx.Node]) -> fx.GraphModule:
    """`module`, but its results are `given`."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copied)
    graph.output(tuple(copied[n] for n in given))
    return fx.GraphModule(module, graph)


def _rest(module: fx.GraphModule, given: list[fx.Node], chains: set[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        copied[node] = graph.node_copy(node)
    for k, node in enumerate(given):
        copied[node] = graph.placeholder(f"given_{k}")
    for node in module.graph.nodes:
        if node in chains and node not in copied:
            missing = [n for n in node.all_input_nodes if n not in copied]
            if missing:
                raise ValueError(f"a view, {node.name}, depends on {missing[0].name}")
            if _in_place(node):
                copied[node] = copied[node.all_input_nodes[0]]
            else:
                copied[node] = graph.node_copy(node, lambda n: copied[n])
    (output,) = module.graph.find_nodes(op="output")
    graph.output(map_arg(output.args[0], lambda n: copied[n]))
    return fx.GraphModule(module, graph)
