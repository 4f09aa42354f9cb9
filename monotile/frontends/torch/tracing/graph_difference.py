"""Compares the graphs of two calls of a model, of which the second has found the state that the first has left.

They are equal where the same operators lead to the results and the updates. What the first call computes of parameters and constants alone, the second may
read as a constant that the first has kept.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from monotile.frontends.torch.numbers.constants import Owners
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.tracing.restored_state import is_equal

# Operators whose results depend on the type of an operand alone, and those that may give what they are given.
_OF_TYPES = frozenset("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty".split())  # fmt: skip
_SAME = frozenset("to _to_copy detach alias contiguous lift_fresh lift_fresh_copy slice expand view reshape type_as view_as expand_as".split())  # fmt: skip


class Difference(NamedTuple):
    """where: the user's line. reason: for the message."""

    where: str
    reason: str = ""


class StandIns:
    """Tensors of zeros in place of traced ones, which a call has left for the next. constant: those that are the same in each call."""

    def __init__(self) -> None:
        self._made = dict[int, torch.Tensor]()  # by the id of the traced tensor
        self.constant, self.given = set[int](), set[int]()  # ids

    def of(self, x: torch.Tensor, *, constant: bool) -> torch.Tensor:
        if id(x) not in self._made:
            made = torch.zeros([int(n) for n in x.shape], dtype=x.dtype, device=x.device)
            self._made[id(x)] = made
            (self.constant if constant else self.given).add(id(made))
        return self._made[id(x)]


def difference(one: ExportedProgram, other: ExportedProgram, made: StandIns) -> Difference | None:
    """Where the second call computes otherwise than the first. made: the state that it has found."""
    first, second = _Calls(one, None), _Calls(other, made)
    if one.call_spec.out_spec != other.call_spec.out_spec:
        return Difference("", ": it returns something else")
    graphs = [(one.graph, other.graph)]
    for a, b in graphs:  # grows
        updates = zip(first.updates[a], second.updates[b], strict=False)
        todo, seen = [*updates, (a.output_node(), b.output_node())], set[tuple[fx.Node, fx.Node]]()
        while todo:
            pair = todo.pop()
            if pair in seen:
                continue
            seen.add(pair)
            x, y = map(_past_copies, pair)
            operands = _operands(first, second, x, y)
            if isinstance(operands, Difference):
                return operands
            todo += operands
            inner = _inner(x), _inner(y)
            if inner[0] is not None and inner[1] is not None:
                graphs.append((inner[0], inner[1]))
        if len(first.updates[a]) != len(second.updates[b]):
            longer = max(first.updates[a], second.updates[b], key=len)
            return _at(longer[min(len(first.updates[a]), len(second.updates[b]))])
    return None


def _operands(
    first: "_Calls", second: "_Calls", a: fx.Node, b: fx.Node
) -> list[tuple[fx.Node, fx.Node]] | Difference:
    """The operands of two nodes that are otherwise equal, in pairs."""
    if b in second.kept and a in first.steady and _type(a) == _type(b):
        return []
    if a.op != b.op or first.key(a) != second.key(b):
        return _at(b, a)
    (one, form), (other, now) = (pytree.tree_flatten((x.args, x.kwargs)) for x in (a, b))
    if form != now:
        return _at(b, a)
    found = list[tuple[fx.Node, fx.Node]]()
    for x, y in zip(one, other, strict=True):
        if isinstance(x, fx.Node) and isinstance(y, fx.Node):
            found.append((x, y))
        elif not _is_same(x, y):
            return _at(b, a)
    return found


class _Calls:
    """The graph of a call with its subgraphs. steady: nodes whose values are the same in each call. kept: those of them that depend on constants which the
    call before has kept. updates: nodes that write to what a call is given, by graph."""

    def __init__(self, exported: ExportedProgram, made: StandIns | None) -> None:
        self.steady, self.kept = set[fx.Node](), set[fx.Node]()
        self.updates = dict[fx.Graph, list[fx.Node]]()
        self._keys = dict[fx.Node, object]()
        held = set[fx.Node]()
        tensors: Mapping[str, Any] = {**exported.state_dict, **exported.constants}
        nodes = exported.graph.find_nodes(op="placeholder")
        for node, spec in zip(nodes, exported.graph_signature.input_specs, strict=True):
            value = tensors.get(spec.target or "")
            given = spec.kind is InputKind.USER_INPUT or (made is not None and id(value) in made.given)  # fmt: skip
            constant = value if spec.kind is InputKind.CONSTANT_TENSOR else None
            own = spec.target if constant is None else _Constant(constant)
            self._keys[node] = node.name if given else own
            if not given:
                held.add(node)
            if made is not None and id(value) in made.constant:
                self.kept.add(node)
        self._add(exported.graph, held)

    def _add(self, graph: fx.Graph, held: Collection[fx.Node]) -> None:
        known = steady_nodes(graph.nodes, held)
        self.steady |= known
        self.updates[graph] = [n for n in graph.nodes if _is_update(n) and n not in known]
        for k, node in enumerate(graph.nodes):
            if node.op == "placeholder":
                self._keys.setdefault(node, k)
            elif node in known and any(i in self.kept for i in node.all_input_nodes):
                self.kept.add(node)
            inner = _inner(node)
            if inner is not None:
                self._add(inner, ())

    def key(self, node: fx.Node) -> object:
        if node.op == "placeholder":
            return self._keys[node]
        return None if node.op == "get_attr" else node.target


def _inner(node: fx.Node) -> fx.Graph | None:
    """The subgraph that `node` reads."""
    held: Any = node.graph.owning_module if node.op == "get_attr" else None
    for part in str(node.target).split(".") if held is not None else ():
        held = getattr(held, part)
    return held.graph if isinstance(held, fx.GraphModule) else None


def steady_nodes(nodes: Iterable[fx.Node], held: Collection[fx.Node | None]) -> set[fx.Node]:
    """The nodes of a graph whose values are the same in each call. held: the placeholders of tensors that the model holds."""
    nodes = [n for n in nodes if n.op != "output"]
    owners = Owners(nodes, {})
    varying, found = set[Any](), set[fx.Node]()
    for n in nodes:
        owner = owners.of[n]
        if n.op == "placeholder":
            steady = n in held and owner not in owners.written
        elif _name(n) in _OF_TYPES:
            steady = True
        else:
            operands = all(i in found for i in n.all_input_nodes)
            steady = operands and owner not in varying and not _is_drawn(n)
        if steady:
            found.add(n)
        else:
            varying.add(owner)
    return found


def _is_drawn(n: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())


def _is_update(n: fx.Node) -> bool:
    schema = getattr(n.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _name(n: fx.Node) -> str:
    schema = getattr(n.target, "_schema", None)
    return "" if schema is None else schema.name.rpartition("::")[2]


def _past_copies(n: fx.Node) -> fx.Node:
    """The node whose value `n` has, of the same shape and type."""
    while _name(n) in _SAME and isinstance(n.args[0], fx.Node) and _type(n) == _type(n.args[0]):
        n = n.args[0]
    return n


def _type(n: fx.Node) -> object:
    """Sizes as texts: comparing symbols would add guards."""
    x = n.meta.get("val")
    return ([*map(str, x.shape)], x.dtype, x.device) if isinstance(x, torch.Tensor) else None


class _Constant(NamedTuple):
    """Equal to another of the same contents."""

    tensor: torch.Tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant):
            return False
        x, y = self.tensor, other.tensor
        return x is y or ((x.dtype, x.device) == (y.dtype, y.device) and torch.equal(x, y))

    def __ne__(self, other: object) -> bool:  # a tuple's own compares the tensors
        return not self == other

    __hash__ = object.__hash__


def _is_same(x: Any, y: Any) -> bool:
    both = isinstance(x, float) and isinstance(y, float) and math.isnan(x) and math.isnan(y)
    return both or is_equal(x, y) or (type(x) is type(y) and x == y)


def _at(*nodes: fx.Node) -> Difference:
    """The first line of the user's among those of `nodes`."""
    return Difference(next(filter(None, (origin(n.stack_trace) for n in nodes)), ""))
