"""Evaluates a model's constants while it is traced: tensors that it holds as plain attributes or makes from literals, which are compiled in.

Such a list of types of columns, kept as a tensor, chooses among layers (`if self.continuous[k]:`) for good. PyTorch traces its elements without their
values; what is computed of constants alone is computed here. A constant that the model itself changes is data like any other.
"""

import operator
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import (
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]
)

_MAX_ELEMENTS = 1 << 20  # of a constant that is evaluated
_Owner = int | fx.Node


class Constants:
    """The constants of a model that is traced, once or more."""

    def __init__(self) -> None:
        self._used = set[_Owner]()  # memory of those whose values were used
        self._changed = set[_Owner]()  # memory of those that the model changes

    def value(self, x: torch.Tensor) -> Any:
        """The value of the traced `x`, as by `tolist`, if it is the same in every call; None if unknown."""
        node = node_of(x)
        if node is None:
            return None
        order = _inputs_first(node)
        if order is None:
            return None
        held = traced_constants()
        owners = Owners(node.graph.nodes, held)
        if any(owners.of[n] in owners.written for n in order):
            return None
        asked = {owners.of[n] for n in order if n.op == "get_attr"}
        value = None if asked & self._changed else _evaluated(order, held)
        if value is not None:
            self._used |= asked
        return value

    @contextmanager
    def numbers(self) -> Generator[None]:
        """Within, Python's int and float of a traced constant give its value."""
        with ExitStack() as stack:
            for name, kind in (("__int__", int), ("__index__", int), ("__float__", float)):
                number = self._number(getattr(FakeTensor, name), kind)
                stack.enter_context(patch.object(FakeTensor, name, number))
            yield

    def _number(
        self, plain: Callable[[FakeTensor], Any], kind: type[int] | type[float]
    ) -> Callable[[FakeTensor], Any]:
        def number(x: FakeTensor) -> Any:
            known = self.value(x.reshape(())) if x.numel() == 1 else None
            return plain(x) if known is None or isinstance(known, complex) else kind(known)

        return number

    def are_unchanged(self, exported: ExportedProgram) -> bool:
        """Whether `exported` changes none of the constants whose values were used. If it does, they are not used any more."""
        specs = exported.graph_signature.input_specs
        constants = {
            s.arg.name: exported.constants.get(s.target or "")
            for s in specs
            if s.kind is InputKind.CONSTANT_TENSOR
        }
        wrong = Owners(exported.graph.nodes, constants).written & self._used
        self._changed |= wrong
        self._used -= wrong
        return not wrong


def _evaluated(order: list[fx.Node], held: dict[str, Any]) -> Any:
    """The value of the last node, as by `tolist`; None if it is too large to compute. held: the constants by name."""
    values = dict[fx.Node, Any]()
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():  # pyright: ignore[reportPrivateUsage]
        for n in order:
            if n.op == "get_attr":
                value = held.get(str(n.target))
                if not isinstance(value, torch.Tensor) or value.numel() > _MAX_ELEMENTS:
                    return None
            else:
                args = fx.map_arg((n.args, n.kwargs), values.__getitem__)
                value = n.target(*args[0], **args[1])  # pyright: ignore[reportCallIssue]
            values[n] = value
        found = values[order[-1]]
        return found.tolist() if isinstance(found, torch.Tensor) else None


def _inputs_first(node: fx.Node) -> list[fx.Node] | None:
    """`node` and all that it depends on, inputs first; None if that includes more than constants and deterministic operators."""
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
        if n.op != "get_attr" and not is_pure(n.target):
            return None
        seen.add(n)
        order.append(n)
    return order


def is_pure(target: Any) -> bool:
    if target is operator.getitem:  # one of several results
        return True
    schema = getattr(target, "_schema", None)
    drawn = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return schema is not None and not schema.is_mutable and not drawn


def node_of(x: torch.Tensor) -> fx.Node | None:
    """The node of a tensor in the graph that is being traced."""
    mode = get_proxy_mode()
    if mode is None or not isinstance(x, FakeTensor):
        return None
    slot: Any = get_proxy_slot(x, mode.tracer, None)
    node = getattr(getattr(slot, "proxy", None), "node", None)
    return node if isinstance(node, fx.Node) else None


def traced_constants() -> dict[str, Any]:
    """The constants of the graph that is being traced, by name."""
    mode = get_proxy_mode()
    root = getattr(mode.tracer, "root", None) if mode else None
    return {} if root is None else vars(root) | dict(root.named_buffers())


class Owners:
    """Whose memory the results of nodes may be: that of a constant, or of the node that made it. of: by node. written: of what operators write to,
    through views or not. held: the constants by their name in the graph."""

    def __init__(self, nodes: Iterable[fx.Node], held: dict[str, Any]) -> None:
        self.of, self.written = dict[fx.Node, _Owner](), set[_Owner]()
        for n in nodes:
            self.of[n] = n
            if n.op in ("get_attr", "placeholder"):
                value = held.get(str(n.target) if n.op == "get_attr" else n.name)
                if isinstance(value, torch.Tensor):
                    self.of[n] = _memory(value)
            else:
                self._add(n)

    def _add(self, n: fx.Node) -> None:
        schema = getattr(n.target, "_schema", None)
        if n.target is operator.getitem:
            self.of.update((n, self.of[i]) for i in n.all_input_nodes[:1])
        elif schema is None:  # a subgraph may write
            self.written.update(self.of[i] for i in n.all_input_nodes)
        else:
            given = {s.name: a for s, a in zip(schema.arguments, n.args, strict=False)} | n.kwargs
            for s in schema.arguments:
                a = given.get(s.name)
                if s.alias_info and isinstance(a, fx.Node):
                    self.of[n] = self.of[a]
                    if s.alias_info.is_write:
                        self.written.add(self.of[a])


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr() or id(x)
