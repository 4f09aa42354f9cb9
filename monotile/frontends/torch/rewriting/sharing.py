"""Corrects which tensors share memory, where PyTorch's tracer differs from PyTorch.

An in-place update is visible through every tensor that shares the memory. Whether `reshape` returns a view depends on strides,
and for some operators, such as batch_norm of a transposed tensor, the tracer computes other strides than PyTorch. Where an
update may be visible through such a view, and only there, the operators before it are run on zeros to find out.
"""

import copy

from torch import fx
from torch.export import ExportedProgram

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.rewriting.aliasing import (
    UNSAID,
    Groups,
    changed,
    is_unsure,
    packet,
    sources,
)
from monotile.frontends.torch.rewriting.layouts import Layouts
from monotile.frontends.torch.rewriting.lifted import with_graph


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
    layouts = Layouts(n for n in unsure if packet(n) in UNSAID)
    for node in [n for n in graph.nodes if n in needed]:
        layouts.settle(node)
    return with_graph(exported, graph)


def _refuse_windows(graph: fx.Graph) -> None:
    """Raises CaptureError for an update through `unfold`: elements outside all windows would become zero."""
    todo = [(node, updated) for node in graph.nodes for updated in changed(node)]
    while todo:
        by, node = todo.pop()
        todo += [(by, source) for source in sources(node)]
        if packet(node) == "aten.unfold":
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


def _unsure(graph: fx.Graph) -> list[fx.Node]:
    """Operators that return a view or a copy, where a later in-place update makes a difference."""
    at = {node: k for k, node in enumerate(graph.nodes)}
    last = {node: max((at[user] for user in node.users), default=0) for node in graph.nodes}
    sure, any_, seen = Groups(), Groups(), list[fx.Node]()
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        for source in sources(node):
            (any_ if is_unsure(node) else sure).join(node, source)
            any_.join(node, source)
        if is_unsure(node):
            seen.append(node)
        for updated in changed(node):
            group, reach = sure.of(updated), any_.of(updated)
            if any(any_.of(n) is reach for n in seen) and any(
                last[n] > at[node] and any_.of(n) is reach and sure.of(n) is not group
                for n in at
                if at[n] < at[node]
            ):
                found |= dict.fromkeys(n for n in seen if any_.of(n) is reach)
    return list(found)
