"""Turns a traced loop body, between markers in a graph (`branches/markers.py`), into a `scan` or a `while_loop`.

The body becomes a subgraph. Outer values that it reads are passed in; outer tensors that it updates in place are carried, and written back after
the loop.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from monotile.errors import CaptureError
from monotile.frontends.torch.branches.markers import WHILE
from monotile.frontends.torch.branches.subgraphs import (
    changed_outside,
    copy_nodes,
    line_of,
    nodes_between,
)
from monotile.frontends.torch.rewriting.aliasing import Groups, changed, packet, sources

aten = torch.ops.aten


class LoopRegion:
    """The nodes of `graph` between the markers `loop_begin` and `loop_end`. updated: outer tensors that they update in place."""

    def __init__(self, graph: fx.Graph, start: fx.Node, end: fx.Node) -> None:
        self.graph, self.start, self.end = graph, start, end
        self._lift_sizes()
        for node in [n for n in start.users if not n.users]:
            graph.erase_node(node)
        for node in nodes_between(start, end):
            for x in _same(node):
                node.replace_all_uses_with(x)
        self.nodes = nodes_between(start, end)
        self.inside = set(self.nodes)
        self.updated = list(dict.fromkeys(changed_outside([start, *self.nodes])))

    def _lift_sizes(self) -> None:
        """Moves computations of sizes from outer sizes out of the loop: they may be read anywhere."""
        inside = {self.start, *nodes_between(self.start, self.end)}
        for node in nodes_between(self.start, self.end):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and inside.isdisjoint(node.all_input_nodes):
                self.start.prepend(node)
                inside.discard(node)

    def check(self, groups: Groups) -> None:
        """Refuses a body whose tensors or updates are visible outside in a way that a subgraph cannot express."""
        for node in self.nodes:
            for user in node.users:
                if user not in self.inside and user is not self.end:
                    raise self._refusal(f"a tensor that its body creates, at {line_of(node)}, is used after it by {line_of(user)}: bind it to a name in the body")  # fmt: skip
        for updated in self.updated:
            for other in self.outer():
                if other is not updated and groups.of(other) is groups.of(updated):
                    raise self._refusal("its body updates a tensor in place that it also reaches by a view made before it: make the view in the body")  # fmt: skip

        self._check_shared(groups)

    def _check_shared(self, groups: Groups) -> None:
        """Refuses a tensor that is updated in place and has another name or is in a list: the next iteration would have to update both."""
        first, last, each = self.start.args[1], self.end.args[1], _nodes(self.end.args[2])
        updated = {y for n in self.nodes for x in changed(n) for y in _back(x)}
        inputs = {n.args[1]: n for n in self.start.users}
        pairs = [
            (x, y)
            for k, (x, y) in enumerate(zip(_nodes(first), _nodes(last), strict=True))
            if inputs.get(k + 1) in updated
        ]
        mutable = {groups.of(x) for x in (*self.updated, *(y for _, y in pairs))}
        known = Counter(groups.of(x) for x in _nodes(last))
        for x in (*_nodes(last), *each):
            group = groups.of(x)
            if group in mutable and (x in each or known[group] > 1):
                raise self._refusal(f"a tensor that it updates in place has another name, or is in a list, from {line_of(x)}: give these a clone")  # fmt: skip
        at = {node: k for k, node in enumerate(self.graph.nodes)}
        for x, y in pairs:
            outer = [n for n in at if n not in self.inside and groups.of(n) in (groups.of(x), groups.of(y))]  # fmt: skip
            if any(n.op == "placeholder" or any(at[u] > at[self.end] for u in n.users) for n in outer):  # fmt: skip
                raise self._refusal(f"it updates a tensor in place that it begins with, from {line_of(x)}, and others know: begin with a clone")  # fmt: skip

    def _refusal(self, text: str) -> CaptureError:
        what = "data" if self.start.args[0] == WHILE else "a size of dynamic_shapes"  # fmt: skip
        return CaptureError(
            f"at {line_of(self.start)}: the number of iterations of this loop depends on {what}, and {text}"
        )

    def outer(self) -> list[fx.Node]:
        """The outer nodes that the body reads or returns."""
        read = [x for n in (*self.nodes, self.end) for x in n.all_input_nodes]
        count: Any = self.end.args[0]
        own = {self.start, count} if not any(count in n.all_input_nodes for n in self.nodes) else {self.start}  # fmt: skip
        return [x for x in dict.fromkeys([*read, *self.updated]) if x not in self.inside | own]

    def replace(self, name: str, root: fx.GraphModule, groups: Groups) -> None:
        """Replaces the nodes by a `scan` of a new subgraph `name` of `root`."""
        count, first = self.start.args
        _, last, each = self.end.args
        closed = [x for x in self.outer() if x.op != "get_attr" and x not in self.updated]
        carried = [*_nodes(first), *self.updated]
        body = _Body(self, carried, closed)
        made = body.graph_of([*_nodes(last), *self.updated], _nodes(each))
        setattr(root, name, fx.GraphModule(root, made))
        with self.graph.inserting_before(self.end):
            init = [self._call(aten.clone.default, _like(x), x) for x in carried]
            for x in init:
                x.kwargs = {"memory_format": torch.contiguous_format}
            step, outer = self.graph.get_attr(name), tuple(self._apart(closed, groups))
            values = [_like(x) for x in carried]
            stacked = list(self.end.meta["val"])[len(_nodes(last)) :]
            if count == WHILE:
                setattr(
                    root, f"{name}_test", fx.GraphModule(root, body.test(len(_nodes(first)) - 1))
                )
                given = (self.graph.get_attr(f"{name}_test"), step, tuple(init), outer)
                loop = self._call(torch.ops.higher_order.while_loop, tuple(values), *given)
            else:
                numbers = self._call(aten.arange.default, self._numbers(count), count)
                numbers.kwargs = {"dtype": torch.int64, "device": torch.device("cpu")}
                given = (step, init, [numbers], outer)
                loop = self._call(torch.ops.higher_order.scan, (*values, *stacked), *given)
            parts = [self._call(operator.getitem, v, loop, k) for k, v in enumerate(loop.meta["val"])]  # fmt: skip
            for x, part in zip(self.updated, parts[len(_nodes(first)) :], strict=False):
                self._call(aten.copy_.default, x.meta["val"], x, part)
        found = [*parts[: len(_nodes(first))], *parts[len(carried) :]]
        for user in list(self.end.users):
            assert user.target is operator.getitem
            k: Any = user.args[1]
            user.replace_all_uses_with(found[k])
            self.graph.erase_node(user)
        for node in (self.end, *reversed(self.nodes), self.start):
            self.graph.erase_node(node)

    def _apart(self, given: Sequence[fx.Node], groups: Groups) -> list[fx.Node]:
        """`given`, with copies where two share memory, which `scan` refuses."""
        seen, found = set[fx.Node](), list[fx.Node]()
        for x in given:
            again = groups.of(x) in seen and isinstance(x.meta.get("val"), torch.Tensor)
            seen.add(groups.of(x))
            found.append(self._call(aten.clone.default, x.meta["val"].clone(), x) if again else x)
        return found

    def _numbers(self, count: Any) -> torch.Tensor:
        value = count.meta["val"] if isinstance(count, fx.Node) else count
        return self.start.meta["val"][0].new_empty((value,))

    def _call(self, op: Any, value: Any, *args: Any) -> fx.Node:
        made = self.graph.call_function(op, args)
        made.meta = dict(self.start.meta) | {"val": value}
        return made


class _Body:
    """Builds the subgraph: a function of the carried values, the iteration index, and the outer values `closed`."""

    def __init__(
        self, of: LoopRegion, carried: Sequence[fx.Node], closed: Sequence[fx.Node]
    ) -> None:
        self._of, self._graph = of, fx.Graph()
        self._env = dict[fx.Node, fx.Node]()
        inputs = {n.args[1]: n for n in of.start.users if n.target is operator.getitem}
        count = len(_nodes(of.start.args[1]))
        changes = {y for n in of.nodes for x in changed(n) for y in _back(x)}
        for k, x in enumerate(carried):
            own = inputs.get(k + 1) if k < count else x
            held = self._given(f"carried_{k}", x)
            if own is not None:
                copied = own in changes or x in of.updated
                self._env[own] = self._copy(held) if copied else held
        if of.start.args[0] != WHILE:
            number = self._graph.placeholder("iteration")
            number.meta = dict(of.start.meta) | {"val": of.start.meta["val"][0]}
            if 0 in inputs:
                self._env[inputs[0]] = number
        for x in closed:
            self._env[x] = self._given(x.name, x)

    def _given(self, name: str, x: fx.Node) -> fx.Node:
        made = self._graph.placeholder(name)
        made.meta = dict(x.meta)
        value = made.meta["val"]
        made.meta["val"] = _like(x) if isinstance(value, torch.Tensor) and name.startswith("carried_") else value  # fmt: skip
        return made

    def graph_of(self, last: Sequence[fx.Node], each: Sequence[fx.Node]) -> fx.Graph:
        env, graph = self._env, self._graph
        copy_nodes(self._of.nodes, graph, env)
        for x in (*last, *each):
            if x.op == "get_attr" and x not in env:
                env[x] = graph.node_copy(x)
        outputs = [self._copy(env[x]) for x in (*last, *each)]
        graph.output(tuple(outputs)).meta["val"] = tuple(x.meta["val"] for x in outputs)
        return graph

    def test(self, place: int) -> fx.Graph:
        """The condition of a `while_loop`: a function of the same arguments that returns the carried test, copied, as PyTorch takes no result that is
        an argument."""
        graph = fx.Graph()
        given = [graph.node_copy(x) for x in self._graph.find_nodes(op="placeholder")]
        copied = graph.call_function(aten.clone.default, (given[place],))
        copied.meta = dict(self._of.start.meta) | {"val": _like(given[place])}
        graph.output(copied).meta["val"] = copied.meta["val"]
        return graph

    def _copy(self, x: fx.Node) -> fx.Node:
        made = self._graph.call_function(aten.clone.default, (x,), {"memory_format": torch.contiguous_format})  # fmt: skip
        made.meta = dict(self._of.start.meta) | {"val": _like(x)}
        return made


def _nodes(given: Any) -> list[fx.Node]:
    return list(given)


def _back(x: fx.Node) -> list[fx.Node]:
    """`x` and the tensors that it may be a view of."""
    found = [x]
    for y in found:
        found += [z for z in sources(y) if z not in found]
    return found


def _same(node: fx.Node) -> Iterator[fx.Node]:
    """The argument of a conversion that returns it unchanged. The tracer refers to the tensor by the conversion's node from then on."""
    x = node.args[0] if node.args else None
    if packet(node) not in ("aten.to", "aten.contiguous") or not isinstance(x, fx.Node):
        return
    old, new = x.meta["val"], node.meta["val"]
    kept = (old.dtype, old.device, old.stride()) == (new.dtype, new.device, new.stride())
    copied = node.kwargs.get("copy") or any(k is True for k in node.args[1:])
    if kept and not copied and (packet(node) == "aten.to" or old.is_contiguous()):
        yield x


def _like(x: fx.Node) -> torch.Tensor:
    value: torch.Tensor = x.meta["val"]
    return torch.empty_like(value, memory_format=torch.contiguous_format)
