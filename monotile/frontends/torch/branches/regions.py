"""Turns the branches of a Python `if`, between markers in a graph (`markers.py`), into a `torch.cond`.

A branch becomes a subgraph. Outer values that it reads are passed in. It copies outer tensors that it changes in place and returns the copies as
further results, which are then written back. If both branches are a few element-wise operators, they stay in the graph and their results are selected:
that is faster than waiting for the test.
"""

import copy
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

from monotile.errors import CaptureError
from monotile.frontends.torch.branches.markers import branch, join, loop_begin, loop_end
from monotile.frontends.torch.branches.subgraphs import (
    changed_outside,
    copy_nodes,
    line_of,
    nodes_between,
    sizes_in,
)
from monotile.frontends.torch.loops.scan import LoopRegion
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.rewriting.aliasing import Groups, changed, is_unsure, packet, sources
from monotile.frontends.torch.rewriting.lifted import with_graph

MAX_SELECTED = 8  # element-wise operators of a branch that is computed without waiting for the test

aten = torch.ops.aten


class SideEffectError(CaptureError):
    """A branch of an `if` has a side effect that a subgraph cannot express."""


def outline(exported: ExportedProgram) -> ExportedProgram:
    """`exported` with subgraphs in place of markers. Raises SideEffectError if a branch has a side effect that a subgraph cannot express."""
    inner = [m.graph for m in exported.graph_module.modules() if isinstance(m, fx.GraphModule)]
    for graph in inner[1:]:
        for mark in _markers(graph):
            raise _refusal(
                mark, "it is in a part of the model with another autocast or gradient mode"
            )
    if not _markers(exported.graph):
        return exported
    graph = copy.deepcopy(exported.graph)
    outliner = _Outliner(graph, copy.copy(exported.graph_module))
    outliner.run()
    return with_graph(exported, graph, root=outliner.root)


def _markers(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.target in (branch, loop_begin, loop_end)]


@dataclass
class _Region:
    """The nodes of two branches. joins: the `join` markers after them. updated: outer tensors that they update in place."""

    markers: tuple[fx.Node, fx.Node, fx.Node]
    branches: tuple[list[fx.Node], list[fx.Node]]
    joins: list[fx.Node]
    updated: list[fx.Node]

    @property
    def test(self) -> fx.Node:
        found = self.markers[0].args[0]
        assert isinstance(found, fx.Node)
        return found


def _region(start: fx.Node, middle: fx.Node, end: fx.Node) -> _Region:
    branches = nodes_between(start, middle), nodes_between(middle, end)
    joins = list[fx.Node]()
    while (node := (joins[-1] if joins else end).next).target is join or _is_literal(node):
        if node.target is join:
            joins.append(node)
        else:  # a number that a branch has left
            start.prepend(node)
    updated = dict.fromkeys(x for nodes in branches for x in changed_outside(nodes))
    return _Region((start, middle, end), branches, joins, list(updated))


def _is_literal(node: fx.Node) -> bool:
    return node.target is aten.full.default and not node.all_input_nodes


class _Outliner:
    """Changes `graph` in place. root: a module with its subgraphs."""

    def __init__(self, graph: fx.Graph, root: fx.GraphModule) -> None:
        self.graph, self.root = graph, root
        self._count = 0

    def run(self) -> None:
        # What only the trace has needed would be an operand of a branch.
        self.graph.eliminate_dead_code(lambda n: n.is_impure() and packet(n) != "aten.detach_")
        for node in self.graph.nodes:
            if itself := list(_itself(node)):
                node.replace_all_uses_with(itself[0])
        _refuse_late_changes(self.graph)
        self._groups = _sharing(self.graph)
        begun: list[list[fx.Node]] = []
        for node in _markers(self.graph):
            if node.target is loop_begin:
                begun.append([node])
                continue
            if node.target is loop_end:
                (start,) = begun.pop()
                self._loop(LoopRegion(self.graph, start, node))
                continue
            match node.args[1]:
                case 0:
                    begun.append([node])
                case 1:
                    begun[-1].append(node)
                case _:
                    start, middle = begun.pop()
                    self._region(_region(start, middle, node))

    def _loop(self, loop: LoopRegion) -> None:
        loop.check(self._groups)
        loop.replace(f"iteration_{self._count}", self.root, self._groups)
        self._count += 1

    def _region(self, region: _Region) -> None:
        self._check(region)
        if not region.updated and all(map(_is_cheap, region.branches)):
            self._select(region)
            dead = [*region.joins, *region.markers]
        else:
            if region.joins or region.updated:
                self._make_cond(region)
            dead = [
                *region.markers[:2],
                *region.branches[0],
                *region.branches[1],
                region.markers[2],
            ]
            dead += region.joins
        for node in sorted(dead, reverse=True):
            self.graph.erase_node(node)

    def _check(self, region: _Region) -> None:
        """Refuses branches whose tensors or updates are visible outside in a way that a subgraph cannot express."""
        for k, nodes in enumerate(region.branches):
            inside = set(nodes)
            for node in nodes:
                for user in node.users:
                    own = user in region.joins and user.args[1 + k] is node is not user.args[2 - k]
                    if user not in inside and not own:
                        raise _refusal(
                            region.markers[0],
                            "a tensor that one branch creates is used elsewhere: it is created"
                            f" at {line_of(node)} and used at {line_of(user)}",
                        )
        for updated in region.updated:
            for other in _outer(region):
                if other is not updated and self._groups.of(other) is self._groups.of(updated):
                    raise _refusal(
                        region.markers[0],
                        "a branch updates a tensor in place that it also reaches by a view made before it:"
                        " make the view in that branch",
                    )

    def _select(self, region: _Region) -> None:
        for joined in region.joins:
            _, then, otherwise = joined.args
            with self.graph.inserting_before(joined):
                ways = (then or otherwise, otherwise or then)
                made = self.graph.call_function(aten.where.self, (region.test, *ways))
            made.meta = dict(joined.meta)
            joined.replace_all_uses_with(made)

    def _make_cond(self, region: _Region) -> None:
        operands = [n for n in _outer(region) if n.op != "get_attr"]
        values = [n.meta["val"] for n in region.joins]
        values += [n.meta["val"].clone() for n in region.updated]
        held = list[fx.Node]()
        for k, nodes in enumerate(region.branches):
            results = [n.args[1 + k] for n in region.joins]
            made = _subgraph(nodes, operands, results, region, self.root)
            name = f"branch_{self._count}"
            self._count += 1
            setattr(self.root, name, made)
            with self.graph.inserting_before(region.markers[2]):
                held.append(self.graph.get_attr(name))
        with self.graph.inserting_before(region.markers[2]):
            given = (region.test, *held, tuple(self._without_aliases(operands, region)))
            cond = self.graph.call_function(torch.ops.higher_order.cond, given)
            cond.meta = dict(region.markers[0].meta) | {"val": tuple(values)}
            places = [*region.joins, *region.updated]
            for k, place in enumerate(places):
                made = self.graph.call_function(operator.getitem, (cond, k))
                made.meta = dict(region.markers[0].meta) | {"val": values[k]}
                if place.target is join:
                    place.replace_all_uses_with(made)
                else:
                    back = self.graph.call_function(aten.copy_.default, (place, made))
                    back.meta = dict(region.markers[0].meta) | {"val": place.meta["val"]}

    def _without_aliases(self, operands: Sequence[fx.Node], region: _Region) -> Iterator[fx.Node]:
        """`operands`, with copies where two share memory, which `torch.cond` refuses."""
        seen = {self._groups.of(x) for x in region.updated}
        for x in operands:
            group = self._groups.of(x)
            if (
                group in seen
                and x not in region.updated
                and isinstance(x.meta.get("val"), torch.Tensor)
            ):
                made = self.graph.call_function(aten.clone.default, (x,))
                made.meta = dict(x.meta)
                yield made
            else:
                seen.add(group)
                yield x


def _outer(region: _Region) -> list[fx.Node]:
    """The outer nodes that the branches read or return."""
    inside = {n for nodes in region.branches for n in nodes}
    read = [x for nodes in region.branches for n in nodes for x in n.all_input_nodes]
    read += [x for joined in region.joins for x in joined.args[1:] if isinstance(x, fx.Node)]
    return [x for x in dict.fromkeys([*read, *region.updated]) if x not in inside]


def _subgraph(
    nodes: Sequence[fx.Node],
    operands: Sequence[fx.Node],
    results: Sequence[Any],
    region: _Region,
    root: fx.GraphModule,
) -> fx.GraphModule:
    """`nodes` as a function of `operands`. results: None where there is none."""
    graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for x in operands:
        env[x] = graph.placeholder(x.name)
        env[x].meta = dict(x.meta)
    given = set(env.values())
    for x in changed_outside(nodes):
        if env[x] in given:
            env[x] = _call(graph, aten.clone.default, x.meta["val"].clone(), region, env[x])
    copy_nodes(nodes, graph, env)
    outputs = list[fx.Node]()
    for joined, result in zip(region.joins, results, strict=True):
        value = joined.meta["val"]
        if result is None:  # a name that this branch does not assign
            shape, kind = (
                sizes_in(graph, value.shape),
                {"dtype": value.dtype, "device": value.device},
            )
            outputs.append(_call(graph, aten.full.default, value, region, shape, 0, **kind))
            continue
        found = env[result]
        if found in given or found in outputs or _may_be_view(found) or not _is_plain(found):
            plain = {"memory_format": torch.contiguous_format}
            found = _call(graph, aten.clone.default, value, region, found, **plain)
        outputs.append(found)
    for x in region.updated:
        value = x.meta["val"].clone()
        outputs.append(_call(graph, aten.clone.default, value, region, env[x]))
    graph.output(tuple(outputs)).meta["val"] = tuple(x.meta["val"] for x in outputs)
    return fx.GraphModule(root, graph)


def _call(
    graph: fx.Graph, op: OpOverload, value: Any, region: _Region, *args: Any, **kwargs: Any
) -> fx.Node:
    made = graph.call_function(op, args, kwargs)
    made.meta = dict(region.markers[0].meta) | {"val": value}
    return made


def _may_be_view(node: fx.Node) -> bool:
    return is_unsure(node) or any(sources(node))


def _is_plain(node: fx.Node) -> bool:
    return node.meta["val"].is_contiguous()


def _itself(node: fx.Node) -> Iterator[fx.Node]:
    """The argument that an in-place operator returns."""
    if not isinstance(node.target, OpOverload):
        return
    returns = node.target._schema.returns  # pyright: ignore[reportPrivateUsage]
    if len(returns) == 1 and returns[0].alias_info and returns[0].alias_info.is_write:
        yield from changed(node)


def _sharing(graph: fx.Graph) -> Groups:
    """Groups of nodes that may share memory."""
    groups = Groups()
    for node in graph.nodes:
        for source in sources(node):
            groups.join(node, source)
    return groups


def _refuse_late_changes(graph: fx.Graph) -> None:
    """Raises SideEffectError if the result of a branch is an outer tensor and one of the two is changed in place later: the other would have to change if
    that branch was taken."""
    groups = _sharing(graph)
    at = {node: k for k, node in enumerate(graph.nodes)}
    last = {node: max((at[user] for user in node.users), default=0) for node in graph.nodes}
    changes = [(by, x) for by in graph.nodes for x in changed(by)]
    taken = _branches_of(graph)

    def seen_after(node: fx.Node, by: fx.Node) -> bool:
        """Whether a tensor that shares memory with `node` is read after `by`, or belongs to the caller."""
        group = groups.of(node)
        near = (x for x in at if at[x] < at[by] and groups.of(x) is group)
        return any(last[x] > at[by] or x.op == "placeholder" for x in near)

    for joined in graph.find_nodes(op="call_function", target=join):
        for given in (x for x in joined.args[1:] if isinstance(x, fx.Node)):
            for by, x in changes:
                apart = any((start, 1 - k) in taken[by] for start, k in taken[joined])
                if apart or at[by] < at[joined]:
                    continue
                ways = ((joined, given), (given, joined))
                if any(groups.of(x) is groups.of(a) and seen_after(b, by) for a, b in ways):
                    raise _refusal(
                        joined,
                        f"after it, {line_of(by)} changes a tensor in place that may share memory with the result of a branch:"
                        " write it out of place (x = x + 1), or give a clone",
                    )


def _branches_of(graph: fx.Graph) -> dict[fx.Node, frozenset[tuple[fx.Node, int]]]:
    """For each node the branches that it is in, each by the first marker of its `if` and its number. Of two nodes in different branches of one `if`, a
    call runs only one. Ifs in a loop are left out: each iteration may take another branch."""
    found, now = dict[fx.Node, frozenset[tuple[fx.Node, int]]](), list[tuple[fx.Node, int]]()
    loops = 0
    for node in graph.nodes:
        loops += (node.target is loop_begin) - (node.target is loop_end)
        if node.target is branch and not loops:
            start = node if node.args[1] == 0 else now.pop()[0]
            if node.args[1] != 2:
                now.append((start, int(node.args[1])))
        found[node] = frozenset(now)
    return found


def _is_cheap(nodes: Sequence[fx.Node]) -> bool:
    """Whether `nodes` are a few element-wise operators that may be computed without need."""
    return len([n for n in nodes if not _may_be_view(n)]) <= MAX_SELECTED and all(
        map(_is_harmless, nodes)
    )


def _is_harmless(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or any(changed(node)):
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    divides = packet(node) in _DIVISIONS and not value.is_floating_point()
    simple = torch.Tag.pointwise in node.target.tags or packet(node) in _MOVES or _may_be_view(node)
    return simple and not divides


# Of integers, they may trap.
_DIVISIONS = frozenset(
    {"aten.div", "aten.floor_divide", "aten.remainder", "aten.fmod", "aten.bitwise_left_shift"}
)
_MOVES = frozenset(
    {
        "aten.clone",
        "aten.lift_fresh_copy",
        "aten.full",
        "aten.zeros_like",
        "aten.ones_like",
        "aten.full_like",
    }
)


def _refusal(node: fx.Node, text: str) -> SideEffectError:
    where = origin(node.stack_trace)
    return SideEffectError(
        "this depends on a tensor's value" + (f", at {where}" if where else "") + f", and {text}"
    )
