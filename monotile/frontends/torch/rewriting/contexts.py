"""Inlines regions of a model under autocast, or in another gradient mode, into the graph around them, with autocast's conversions as operators.

torch.export makes a subgraph of each, without what is converted: that appears when PyTorch traces the graph again, which takes as long as
the export.
"""

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.node import map_arg

from monotile.frontends.torch.rewriting.autocast import NOTHING, Conversions, Found, Mode, ambient
from monotile.frontends.torch.rewriting.decompose import retraced
from monotile.frontends.torch.rewriting.lifted import with_graph

_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_REGIONS = (_AUTOCAST, torch.ops.higher_order.wrap_with_set_grad_enabled)
_CAST = torch.ops.aten._to_copy.default

Plan = Mapping[fx.Node, Found]  # for all operators of a graph, and regions whose operators have one


def without_contexts(exported: ExportedProgram) -> ExportedProgram:
    """`exported` without regions, and with the conversions of the autocast that this is called in. A region stays, for PyTorch to trace, if it has
    control flow on which autocast acts, or operators that cannot be run without data."""
    mode = ambient()
    if not mode and not any(map(_is_region, exported.graph.nodes)):
        return exported
    plan = _Planner().plan(exported.graph, mode)
    if plan is None:
        return retraced(exported, {})
    copied = _Copy(exported.graph_module, plan)
    copied.whole(exported.graph)
    return with_graph(exported, copied.graph, root=copied.root)


class _Planner:
    def __init__(self) -> None:
        self._conversions = Conversions()

    def plan(self, graph: fx.Graph, mode: Mode) -> Plan | None:
        """None where PyTorch has to trace an operator of `graph`, or a region under its `mode`."""
        plan: dict[fx.Node, Found] = {}
        for node in graph.nodes:
            if _is_region(node):
                inner = self._region(node, mode)
                if inner is not None:
                    plan |= {**inner, node: NOTHING}
                elif mode:
                    return None
            elif (found := self._conversions.of(node, mode)) is None:
                return None
            else:
                plan[node] = found
        return plan

    def _region(self, region: fx.Node, mode: Mode) -> Plan | None:
        """None also where a region within this one stays."""
        graph, _ = _inside(region)
        by_getitem = all(user.target is operator.getitem for user in region.users)
        (results,) = graph.output_node().args
        if not by_getitem or not isinstance(results, (tuple, list)):
            return None
        plan = self.plan(graph, _mode(region, mode))
        whole = plan is not None and all(n in plan for n in graph.nodes)
        return plan if whole and all(isinstance(x, fx.Node) for x in results) else None


class _Copy:
    """A graph without the regions of a plan. root: a module that has what the graph reads as attributes."""

    def __init__(self, root: fx.GraphModule, plan: Plan) -> None:
        self.graph, self.root = fx.Graph(), copy.copy(root)
        self._plan = plan

    def whole(self, graph: fx.Graph) -> None:
        env: dict[fx.Node, Any] = {}
        for node in graph.find_nodes(op="placeholder"):
            env[node] = self.graph.node_copy(node)
        results = self._lay(graph, env, "")
        self.graph.output(results).meta = dict(graph.output_node().meta)

    def _lay(self, graph: fx.Graph, env: dict[fx.Node, Any], prefix: str) -> Any:
        """Copies `graph`, whose placeholders `env` has, and returns its results. prefix: of attributes."""
        for node in graph.nodes:
            match node.op:
                case "placeholder":
                    pass
                case "output":
                    return map_arg(node.args[0], env.__getitem__)
                case "get_attr":
                    if not all(map(self._goes, node.users)):
                        env[node] = self._attribute(node, prefix)
                case _ if self._goes(node):
                    inner, given = _inside(node)
                    places = inner.find_nodes(op="placeholder")
                    values = map_arg(tuple(given), env.__getitem__)
                    held = dict(zip(places, values, strict=True))
                    env[node] = self._lay(inner, held, f"{prefix}{node.name}_")
                case _ if isinstance(source := env.get(_first(node)), tuple | list):
                    env[node] = source[node.args[1]]
                case _:
                    env[node] = self._converted(node, env)
        raise AssertionError("the graph has no output")

    def _goes(self, node: fx.Node) -> bool:
        return _is_region(node) and node in self._plan

    def _converted(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
        given = {n: env[n] for n in node.all_input_nodes}
        conversion = self._plan.get(node, NOTHING)
        if isinstance(conversion, fx.GraphModule):
            return self._apart(conversion.graph, node, list(given.values()))
        for k, dtype in conversion.casts:
            operand = node.all_input_nodes[k]
            cast = self.graph.call_function(_CAST, (env[operand],), {"dtype": dtype})
            cast.meta = dict(node.meta) | {"val": operand.meta["val"].to(dtype)}
            given[operand] = cast
        made = self.graph.node_copy(node, given.__getitem__)
        made.kwargs = {**made.kwargs, **dict(conversion.named)}
        return made

    def _apart(self, graph: fx.Graph, node: fx.Node, given: Sequence[fx.Node]) -> Any:
        """Inlines `graph` in place of `node`."""
        env = dict(zip(graph.find_nodes(op="placeholder"), given, strict=True))
        for inner in graph.nodes:
            if inner.op == "call_function":
                env[inner] = self.graph.node_copy(inner, env.__getitem__)
                env[inner].meta = dict(node.meta) | {"val": inner.meta["val"]}
        return map_arg(graph.output_node().args[0], env.__getitem__)

    def _attribute(self, node: fx.Node, prefix: str) -> fx.Node:
        if not prefix:
            return self.graph.node_copy(node)
        name = f"{prefix}{node.name}"
        setattr(self.root, name, _held(node))
        made = self.graph.get_attr(name)
        made.meta = dict(node.meta)
        return made


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in _REGIONS


def _inside(region: fx.Node) -> tuple[fx.Graph, Sequence[Any]]:
    """The graph of a region, and its arguments."""
    k = _place(region)
    subgraph = region.args[k]
    assert isinstance(subgraph, fx.Node)
    return _held(subgraph).graph, region.args[k + 1 :]


def _place(region: fx.Node) -> int:
    return 4 if region.target is _AUTOCAST else 1


def _mode(region: fx.Node, around: Mode) -> Mode:
    if region.target is not _AUTOCAST:
        return around
    device, dtype, enabled = region.args[:3]
    rest = {d: t for d, t in around.items() if d != device}
    if not enabled:
        return rest
    assert isinstance(device, str)
    kind = dtype if isinstance(dtype, torch.dtype) else torch.get_autocast_dtype(device)
    return {**rest, device: kind}


def _held(node: fx.Node) -> Any:
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _first(node: fx.Node) -> Any:
    """The node of which `node` is an element."""
    return node.args[0] if node.target is operator.getitem else None
