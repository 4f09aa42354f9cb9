"""The memory layouts of a graph's tensors when PyTorch runs it, which its tracer does not always know."""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import origin

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides and type of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def like(self, other: "Layout") -> bool:
        """Whether every element has the same offset from the first as in the other layout."""
        pairs = zip(self.shape, self.stride, other.stride, strict=True)
        return all(n == 1 or x == y for n, x, y in pairs) or 0 in self.shape

    @property
    def open(self) -> bool:
        """Whether it is dynamic."""
        return any(isinstance(n, torch.SymInt) for n in (*self.shape, *self.stride))

    def at(self, sizes: Mapping[Any, Any]) -> "Layout | None":
        """It, where the tracer's symbols are these; None where it depends on others."""
        if not self.open:
            return self
        shape, stride = (
            tuple(_number(n, sizes) for n in each) for each in (self.shape, self.stride)
        )
        if any(n is None for n in (*shape, *stride)):
            return None
        return replace(self, shape=shape, stride=stride)

    @property
    def order(self) -> list[int]:
        """The dimensions by descending stride."""
        return sorted(range(len(self.shape)), key=lambda d: -self.stride[d])

    def zeros(self) -> torch.Tensor:
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        held = torch.zeros(
            0 if 0 in self.shape else 1 + reach, dtype=self.dtype, device=self.device
        )
        return held.set_(held.untyped_storage(), 0, self.shape, self.stride)  # and no view


def _number(n: Any, sizes: Mapping[Any, Any]) -> int | None:
    if not isinstance(n, torch.SymInt):
        return n
    found = n.node.expr.xreplace(sizes)
    return int(found) if found.is_Integer else None


def layout_of(x: Any) -> Any:
    """The layout of a tensor; any other value is returned unchanged."""
    if not isinstance(x, torch.Tensor):
        return x
    return Layout(tuple(x.shape), x.stride(), x.dtype, x.device)


class _Known(NamedTuple):
    """layouts: of an operator's results. shares: memory with an argument. same: the result is the first argument itself."""

    layouts: Any
    shares: bool
    same: bool


class Layouts:
    """Gives a graph's results the layouts that they have in PyTorch, by running each operator once on zeros.

    unsaid:   operators that are assumed to copy but may return their argument.
    """

    def __init__(self, unsaid: Iterable[fx.Node]) -> None:
        self._unsaid = frozenset(unsaid)
        self._of: dict[fx.Node, Any] = {}
        self._known: dict[str, _Known] = {}
        self._new: set[fx.Node] = set()  # nodes with their own memory
        self._moved: set[fx.Node] = set()  # of nodes with a corrected layout

    def settle(self, node: fx.Node) -> None:
        """Called for nodes in topological order."""
        self._of[node] = pytree.tree_map(layout_of, node.meta.get("val"))
        if node.target is operator.getitem:
            source = node.all_input_nodes[0]
            self._of[node] = self._of[source][node.args[1]]
            if source in self._new:
                self._new.add(node)
        elif isinstance(node.target, OpOverload):
            self._operator(node, self._run(node, node.target))
        if not self._moved.isdisjoint(node.all_input_nodes):
            self._moved.add(node)
        if node in self._new and isinstance(self._of[node], Layout):
            traced = layout_of(node.meta["val"])
            if node in self._moved or not traced.like(self._of[node]):
                moved = _laid_out(node, self._of[node])
                self._of[moved] = self._of[node]
                self._moved.add(moved)

    def _operator(self, node: fx.Node, known: _Known) -> None:
        self._of[node] = known.layouts
        if not known.shares:
            self._new.add(node)
        elif node in self._unsaid:
            if not known.same:
                raise _refusal(node, "returns a view, which PyTorch's tracer takes for a copy")
            source = node.all_input_nodes[0]
            node.replace_all_uses_with(source)

    def _run(self, node: fx.Node, op: OpOverload) -> _Known:
        """Runs `op` on zeros with the layouts of the node's arguments."""
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: self._of[n])
        if any(isinstance(x, Layout) and x.open for x in pytree.tree_leaves((args, kwargs))):
            return self._said(node, op)
        key = f"{op} {args} {kwargs}"
        if key not in self._known:
            leaves, tree = pytree.tree_flatten((args, kwargs))
            given = [x.zeros() if isinstance(x, Layout) else x for x in leaves]
            args, kwargs = pytree.tree_unflatten(given, tree)
            try:
                with torch.no_grad():
                    found = op(*args, **kwargs)
            except (RuntimeError, IndexError) as e:
                raise _refusal(node, f"cannot be run on zeros ({e})") from e
            mine = [x for x in given if isinstance(x, torch.Tensor)]
            self._known[key] = _Known(
                pytree.tree_map(layout_of, found), *_shared(pytree.tree_leaves(found), mine)
            )
        return self._known[key]

    def _said(self, node: fx.Node, op: OpOverload) -> _Known:
        """The layout that the tracer assumes."""
        if node in self._unsaid:
            raise _refusal(node, "may return its argument, depending on the sizes of a call")
        schema = op._schema  # pyright: ignore[reportPrivateUsage]
        views = any(r.alias_info is not None for r in schema.returns)
        return _Known(pytree.tree_map(layout_of, node.meta["val"]), views, same=False)


def storage_of(x: torch.Tensor) -> int:
    """Equal for tensors that share memory, as long as one of them is alive."""
    return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _shared(found: list[Any], given: list[torch.Tensor]) -> tuple[bool, bool]:
    places = {storage_of(x) for x in given}
    results = [x for x in found if isinstance(x, torch.Tensor)]
    shares = any(storage_of(x) in places for x in results)
    first = given[0] if shares else None
    same = len(results) == 1 and first is not None and results[0].is_set_to(first)
    return shares, same


def _laid_out(node: fx.Node, layout: Layout) -> fx.Node:
    """A copy of `node` with this layout, which its users now read."""
    order = layout.order
    back = [order.index(d) for d in range(len(order))]
    users = list(node.users)
    x = _after(node, aten.permute.default, node, order)
    x = _after(x, aten.clone.default, x, memory_format=torch.contiguous_format)
    x = _after(x, aten.permute.default, x, back)
    if not layout_of(x.meta["val"]).like(layout):
        raise _refusal(node, "leaves gaps in memory")
    for user in users:
        user.replace_input_with(node, x)
    return x


def _after(last: fx.Node, op: OpOverload, x: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    with last.graph.inserting_after(last):
        node = last.graph.call_function(op, (x, *args), kwargs)
    value = x.meta["val"]
    with value.fake_mode:
        node.meta = {**last.meta, "val": op(value, *args, **kwargs)}
    return node


def _refusal(node: fx.Node, why: str) -> CaptureError:
    where = origin(node.stack_trace)
    return CaptureError(
        f"{node.target}{f', at {where},' if where else ''} {why}, and an update in place later on"
        " may change its result or argument: call .clone() on the result"
    )
