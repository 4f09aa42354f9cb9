"""Replaces in-place updates, `relu(inplace=True)`, `x += y` or `mask[:4] = 1`, by operators that return new values.

PyTorch makes a graph functional by tracing it again, which takes as long as the export. Most graphs need no more than this.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram

from monotile.frontends.torch.rewriting.aliasing import Groups, changed, packet, sources
from monotile.frontends.torch.rewriting.lifted import with_graph

_aten = torch.ops.aten
# Views of a part, and what gives the whole with another part.
_PARTS = {
    _aten.slice.Tensor: _aten.slice_scatter.default,
    _aten.select.int: _aten.select_scatter.default,
}
# Updates whose other arguments may be of other types: indices, or values that are converted.
_CONVERTING = {
    "fill_", "copy_", "zero_", "masked_fill_", "index_put_", "index_fill_", "index_add_", "index_copy_", "scatter_", "scatter_add_",
}  # fmt: skip


def without_updates(exported: ExportedProgram) -> ExportedProgram:
    """`exported` without updates in place, also in subgraphs; as it is if one is of a value that its graph has not made, or is seen through a view
    that was made before, or has no operator that gives the same as a new value."""
    modules: list[tuple[str, nn.Module]] = list(exported.graph_module.named_modules())
    graphs = {k: copy.deepcopy(m.graph) for k, m in modules if isinstance(m, fx.GraphModule)}
    found = {path: _updates(graph) for path, graph in graphs.items()}
    if None in found.values() or not any(found.values()):
        return exported
    root = copy.copy(exported.graph_module)
    for path, updates in found.items():  # a module before those inside
        if updates:
            _rewrite(graphs[path], updates)
        if path and updates:
            owner, _, name = path.rpartition(".")
            old = root.get_submodule(path)
            setattr(root.get_submodule(owner), name, fx.GraphModule(old, graphs[path]))
    return with_graph(exported, graphs[""], root=root)


def _updates(graph: fx.Graph) -> "Updates | None":
    """The updates of `graph`; None if one cannot be replaced."""
    updates = {node: _functional(node) for node in graph.nodes if any(changed(node))}
    return None if None in updates.values() or not _are_seen_once(graph, updates) else updates


Updates = Mapping[fx.Node, OpOverload | None]


def _functional(node: fx.Node) -> OpOverload | None:
    """The operator whose result is what `node`, which updates its first argument, leaves there."""
    op = node.target
    assert isinstance(op, OpOverload)
    namespace, _, name = packet(node).partition(".")
    updated = node.args[0] if node.args else None
    if namespace != "aten" or not name.endswith("_") or list(changed(node)) != [updated]:
        return None
    if name not in _CONVERTING and not _are_of_type(node.all_input_nodes):
        return None
    if torch.Tag.inplace_view in op.tags:
        return None
    return getattr(getattr(_aten, name[:-1], None), op._overloadname, None)  # pyright: ignore[reportPrivateUsage]


def _are_of_type(nodes: Iterable[fx.Node]) -> bool:
    """Whether all tensors have the type of the first, or are masks."""
    first, *others = [x.meta["val"] for x in nodes if isinstance(x.meta.get("val"), torch.Tensor)]
    return all(x.dtype in (first.dtype, torch.bool) for x in others)


def _are_seen_once(graph: fx.Graph, updates: Updates) -> bool:
    """Whether after each update only the updated value is read of those that may share its memory, or, where it is a part, the whole."""
    at = {node: k for k, node in enumerate(graph.nodes)}
    last = {node: max((at[user] for user in node.users), default=0) for node in graph.nodes}
    groups, members = Groups(), defaultdict[fx.Node, list[fx.Node]](list)
    for node in graph.nodes:
        for source in sources(node):
            groups.join(source, node)
    for node in graph.nodes:
        members[groups.of(node)].append(node)
    for update in updates:
        group = members[groups.of(update)]
        seen = {_base(update, updates), _wholes(_base(update, updates), updates)[-1]}
        made = group[0].op == "call_function" and not any(sources(group[0]))
        if not made or any(
            at[n] < at[update] < last[n] and _base(n, updates) not in seen for n in group
        ):
            return False
    return True


def _base(node: fx.Node, updates: Updates) -> fx.Node:
    """The value of `node` after updates."""
    while node in updates:
        node = node.all_input_nodes[0]
    return node


def _wholes(node: fx.Node, updates: Updates) -> list[fx.Node]:
    """`node`, what it is a part of, what that is a part of and so on."""
    found = [node]
    while found[-1].target in _PARTS:
        found.append(_base(found[-1].all_input_nodes[0], updates))
    return found


def _rewrite(graph: fx.Graph, updates: Updates) -> None:
    base = {node: _base(node, updates) for node in graph.nodes}
    wholes = {node: _wholes(base[node], updates) for node in updates}
    now: dict[fx.Node, fx.Node] = {}  # what a value that was updated has become
    for node in list(graph.nodes):
        for source in node.all_input_nodes:
            if base.get(source) in now:
                node.replace_input_with(source, now[base[source]])
        if op := updates.get(node):
            with graph.inserting_before(node):
                made = graph.call_function(op, node.args, node.kwargs)
                made.meta = dict(node.meta)
                part, *outer = wholes[node]
                now[part] = made
                for whole in outer:
                    made = _with_part(graph, now.get(whole, whole), part, made)
                    part = whole
                    now[part] = made
    for node in reversed(list(updates)):
        graph.erase_node(node)


def _with_part(graph: fx.Graph, whole: fx.Node, part: fx.Node, made: fx.Node) -> fx.Node:
    """`whole` where `part`, a view of it, is `made`."""
    assert isinstance(part.target, OpOverload)
    found = graph.call_function(_PARTS[part.target], (whole, made, *part.args[1:]), part.kwargs)
    found.meta = made.meta | {"val": whole.meta["val"]}
    return found
