"""Corrects which tensors share memory, where PyTorch's tracer differs from PyTorch.

An in-place update is visible through every tensor that shares the memory. Whether `reshape` returns a view depends on strides,
and for some operators, such as batch_norm of a transposed tensor, the tracer computes other strides than PyTorch. Where an
update may be visible through such a view, and only there, the operators before it are run on zeros to find out.
"""

import copy
from collections.abc import Iterator
from typing import Any

from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.layouts import Layouts
from monotile.frontends.torch.lifted import with_graph
from monotile.frontends.torch.origin import origin

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
_UNSAID = frozenset(
    {
        "aten.dropout",
        "aten.einsum",
        "aten.unsafe_chunk",
        "aten.unsafe_split",
        "aten.unsafe_split_with_sizes",
    }
)


def shared_as_run(exported: ExportedProgram) -> ExportedProgram:
    """`exported`, rewritten so that the tracer sees the same views as PyTorch at run time.

    Raises CaptureError if that is not possible.
    """
    _refuse_windows(exported.graph)
    if not _unsure(exported.graph):
        return exported
    graph = copy.deepcopy(exported.graph)
    unsure = _unsure(graph)
    needed = _needed(unsure)
    layouts = Layouts(n for n in unsure if _packet(n) in _UNSAID)
    for node in [n for n in graph.nodes if n in needed]:
        layouts.settle(node)
    signature = copy.deepcopy(exported.graph_signature)
    for old, new in layouts.replaced:
        signature.replace_all_uses(old, new)
    return with_graph(exported, graph, signature)


def _refuse_windows(graph: fx.Graph) -> None:
    """Raises CaptureError for an update through `unfold`: elements outside all windows would become zero."""
    todo = [(node, changed) for node in graph.nodes for changed in _changed(node)]
    while todo:
        by, node = todo.pop()
        todo += [(by, source) for source in _sources(node)]
        if _packet(node) == "aten.unfold":
            _, dim, size, step = node.args
            length = node.all_input_nodes[0].meta["val"].shape[dim]
            if step != size or length % size:
                where = origin(by.stack_trace)
                raise CaptureError(
                    f"{by.target} updates windows of a tensor (unfold) in place"
                    + (f", at {where}" if where else "")
                    + ", and torch.export loses the elements between them: update slices of the tensor"
                )


def _needed(nodes: list[fx.Node]) -> set[fx.Node]:
    """`nodes` and their transitive inputs."""
    found: set[fx.Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


class _Groups:
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


def _unsure(graph: fx.Graph) -> list[fx.Node]:
    """Operators that return a view or a copy, where a later in-place update makes a difference."""
    at = {node: k for k, node in enumerate(graph.nodes)}
    last = {node: max((at[user] for user in node.users), default=0) for node in graph.nodes}
    sure, any_, seen = _Groups(), _Groups(), list[fx.Node]()
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        for source in _sources(node):
            (any_ if _is_unsure(node) else sure).join(node, source)
            any_.join(node, source)
        if _is_unsure(node):
            seen.append(node)
        for changed in _changed(node):
            group, reach = sure.of(changed), any_.of(changed)
            if any(any_.of(n) is reach for n in seen) and any(
                last[n] > at[node] and any_.of(n) is reach and sure.of(n) is not group
                for n in at
                if at[n] < at[node]
            ):
                found |= dict.fromkeys(n for n in seen if any_.of(n) is reach)
    return list(found)


def _packet(node: fx.Node) -> str:
    return str(node.target).rpartition(".")[0]


def _is_unsure(node: fx.Node) -> bool:
    return _packet(node) in _BY_STRIDES or _packet(node) in _UNSAID


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments with which the results may share memory."""
    if node.op != "call_function":
        return
    if not isinstance(node.target, OpOverload) or _packet(node) in _UNSAID:
        yield from node.all_input_nodes[:1]
    elif any(r.alias_info for r in _schema(node.target).returns):
        for argument, value in _arguments(node):
            if argument.alias_info:
                yield from _nodes(value)


def _changed(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that the operator updates in place."""
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
