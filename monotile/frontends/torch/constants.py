"""What a model's constants say while it is traced: tensors that it holds as plain attributes, or makes of literals, which are compiled in.

Such a list of types of columns, kept as a tensor, chooses among layers (`if self.continuous[k]:`) for good. PyTorch traces its elements without their
values; what is computed of constants alone is computed here. A constant that the model itself changes is data like any other.
"""

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import (
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]
)

_MOST = 1 << 20  # elements of a constant that is looked at


class Constants:
    """Those of a model that is traced, once or more."""

    def __init__(self) -> None:
        self._asked: set[int] = set()  # memory of those whose values were told
        self._changed: set[int] = set()  # and of those that the model changes

    def value(self, x: torch.Tensor) -> Any:
        """What the traced `x` is in every call, as `tolist` gives it; None if that is not known."""
        node = _node_of(x)
        if node is None:
            return None
        changed = {*self._changed, *_changed(node.graph.nodes, _root())}
        found, asked = _Evaluation(_root(), changed), set[int]()
        value = found.of(node, asked)
        if value is not None:
            self._asked |= asked
        return value

    def still(self, exported: ExportedProgram) -> bool:
        """Whether `exported` changes none of those whose values were told. If not, they are not told any more."""
        specs = exported.graph_signature.input_specs
        constants = {
            s.arg.name: exported.constants.get(s.target or "")
            for s in specs
            if s.kind is InputKind.CONSTANT_TENSOR
        }
        wrong = _changed(exported.graph.nodes, constants) & self._asked
        self._changed |= wrong
        self._asked -= wrong
        return not wrong


class _Evaluation:
    """Of nodes of a graph, each once. held: the constants by name. changed: memory of those that are none."""

    def __init__(self, held: dict[str, Any], changed: set[int]) -> None:
        self._held, self._changed = held, changed

    def of(self, node: fx.Node, asked: set[int]) -> Any:
        """The value of `node`, as `tolist` gives it; None if more than constants goes into it. asked: takes the memory of these."""
        order = _inputs_first(node)
        if order is None:
            return None
        values = dict[fx.Node, Any]()
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():  # pyright: ignore[reportPrivateUsage]
            for n in order:
                if n.op == "get_attr":
                    value = self._held.get(str(n.target))
                    if not isinstance(value, torch.Tensor) or value.numel() > _MOST:
                        return None
                    if _memory(value) in self._changed:
                        return None
                    asked.add(_memory(value))
                else:
                    args = fx.map_arg((n.args, n.kwargs), values.__getitem__)
                    value = n.target(*args[0], **args[1])  # pyright: ignore[reportCallIssue]
                values[n] = value
            return values[node].tolist() if isinstance(values[node], torch.Tensor) else None


def _inputs_first(node: fx.Node) -> list[fx.Node] | None:
    """`node` behind all that goes into it; None if that is more than constants and operators that give the same every time."""
    todo, order, seen = [node], list[fx.Node](), set[fx.Node]()
    while todo:
        n = todo[-1]
        missing = [i for i in n.all_input_nodes if i not in seen]
        if missing:
            todo += missing
            continue
        todo.pop()
        if n in seen:
            continue
        if n.op != "get_attr" and not _is_pure(n.target):
            return None
        seen.add(n)
        order.append(n)
    return order


def _is_pure(target: Any) -> bool:
    if target is operator.getitem:  # one of several results
        return True
    schema = getattr(target, "_schema", None)
    drawn = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return schema is not None and not schema.is_mutable and not drawn


def _node_of(x: torch.Tensor) -> fx.Node | None:
    """Of the graph that is being traced."""
    mode = get_proxy_mode()
    if mode is None or not isinstance(x, FakeTensor):
        return None
    slot: Any = get_proxy_slot(x, mode.tracer, None)
    node = getattr(getattr(slot, "proxy", None), "node", None)
    return node if isinstance(node, fx.Node) else None


def _root() -> dict[str, Any]:
    """The constants that the graph which is being traced has so far."""
    mode = get_proxy_mode()
    root = getattr(mode.tracer, "root", None) if mode else None
    return {} if root is None else vars(root) | dict(root.named_buffers())


def _changed(nodes: Iterable[fx.Node], held: dict[str, Any]) -> set[int]:
    """The memory of those of the tensors `held`, by their name in the graph, that an operator of it writes to, through a view or not."""
    found, of = set[int](), dict[fx.Node, int]()  # of: whose memory may be that of a node
    for n in nodes:
        if n.op in ("get_attr", "placeholder"):
            value = held.get(str(n.target) if n.op == "get_attr" else n.name)
            if isinstance(value, torch.Tensor):
                of[n] = _memory(value)
            continue
        if n.target is operator.getitem:
            of.update((n, of[i]) for i in n.all_input_nodes if i in of)
            continue
        schema = getattr(n.target, "_schema", None)
        if schema is None:
            found.update(of[i] for i in n.all_input_nodes if i in of)  # a subgraph may write
            continue
        places = zip(schema.arguments, n.args, strict=False)
        aliased = [(s, a) for s, a in places if s.alias_info and isinstance(a, fx.Node) and a in of]
        for s, a in aliased:
            of[n] = of[a]
            if s.alias_info.is_write:
                found.add(of[a])
    return found


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr() or id(x)
