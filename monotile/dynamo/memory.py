"""The memory layout of the tensors of a Dynamo graph when PyTorch runs it, and which of them share memory.

PyTorch's tracer is sometimes wrong about both. So each node is run once by itself, on zeros with the layouts of its arguments.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from monotile.frontends.torch.rewriting.layouts import Layout, layout_of, storage_of

SYMBOLS = torch.SymInt | torch.SymFloat | torch.SymBool
Memory = tuple[fx.Node, int]  # the node that allocated it, and the index of its result


@dataclass(frozen=True, slots=True)
class Place:
    """Memory and layout of a tensor. layout: None if unknown."""

    memory: Memory
    layout: Layout | None


def places(module: fx.GraphModule, args: Sequence[Any]) -> dict[fx.Node, tuple[Place, ...]]:
    """The places of every node's tensors. args: of a call."""
    run = _Run(module, _sizes(module, args))
    devices = {x.device for x in args if isinstance(x, torch.Tensor) and x.is_cuda}
    given = iter(args)
    with torch.random.fork_rng(sorted(d.index for d in devices)), torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                run.value[node] = run.placed(node, next(given))
            elif node.op != "output":
                run.node(node)
    return {
        n: tuple(x for x in pytree.tree_leaves(v) if isinstance(x, Place))
        for n, v in run.value.items()
    }


def _sizes(module: fx.GraphModule, args: Sequence[Any]) -> dict[Any, Any]:
    """The value of each symbol of the tracer in this call."""
    out: dict[Any, Any] = {}
    for node, given in zip(module.graph.find_nodes(op="placeholder"), args, strict=True):
        traced = node.meta.get("example_value")
        if isinstance(traced, torch.Tensor):
            pairs = [*zip(traced.shape, given.shape, strict=True)]
        else:
            pairs = [(traced, given)]
        out |= {n.node.expr: sympy.Integer(x) for n, x in pairs if isinstance(n, torch.SymInt)}
    return out


class _Run:
    """value: of every node, with Places for tensors; tensors whose `item()` the graph takes stay as they are.
    sizes: of the call, by the tracer's symbols."""

    def __init__(self, module: fx.GraphModule, sizes: Mapping[Any, Any]) -> None:
        self.value: dict[fx.Node, Any] = {}
        self._sizes = sizes
        self._module = module
        self._traced: dict[int, Memory] = {}
        self._known: dict[str, tuple[Any, tuple[int | None, ...]]] = {}

    def placed(self, node: fx.Node, value: Any) -> Any:
        """`value` as an argument or attribute of the graph, in its own memory. Tensors whose `item()` is taken stay as they are."""
        if isinstance(value, torch.Tensor) and any(n.target == "item" for n in node.users):
            return value
        self._fake(node)  # so that the tracer's views of it are known as views
        return pytree.tree_map_only(torch.Tensor, lambda x: Place((node, 0), layout_of(x)), value)

    def node(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            found: Any = self._module
            for name in str(node.target).split("."):
                found = getattr(found, name)
            self.value[node] = self.placed(node, found)
            return
        if node.target is operator.getitem:
            args: Any = map_arg(node.args, lambda n: self.value[n])
            if isinstance(args[0], tuple | list):
                self.value[node] = args[0][args[1]]
                return
        self.value[node] = self._ran(node)

    def _ran(self, node: fx.Node) -> Any:
        """The result of running the node; the tracer's result if that is impossible or of another type."""
        traced = self._fake(node)
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: self.value[n])
        leaves = pytree.tree_leaves((args, kwargs))
        given = [x for x in leaves if isinstance(x, Place)]
        if not _harmless(node, leaves) or any(x.layout is None for x in given):
            return traced
        key = f"{node.op} {node.target} {[x.layout if isinstance(x, Place) else x for x in leaves]}"
        try:
            if key not in self._known:
                self._known[key] = self._alone(node, args, kwargs)
        except Exception:  # such as an operator that does not accept zeros
            return traced
        found, sources = self._known[key]
        which = iter(range(len(sources)))

        def place(layout: Layout) -> Place:
            k = next(which)
            source = sources[k]
            return Place((node, k) if source is None else given[source].memory, layout)

        made = pytree.tree_map_only(Layout, place, found)
        return made if _alike(made, traced) else traced

    def _alone(self, node: fx.Node, args: Any, kwargs: Any) -> tuple[Any, tuple[int | None, ...]]:
        """The results with Layouts for tensors, and the argument with which each shares memory."""
        zeros: list[torch.Tensor] = []

        def zero(x: Place) -> torch.Tensor:
            assert x.layout is not None
            zeros.append(x.layout.zeros())
            return zeros[-1]

        args, kwargs = pytree.tree_map_only(Place, zero, (args, kwargs))
        if node.op == "call_method":
            found = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            assert callable(node.target)
            found = node.target(*args, **kwargs)
        memory = {storage_of(x): k for k, x in reversed([*enumerate(zeros)])}
        results = [x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]
        return pytree.tree_map(layout_of, found), tuple(memory.get(storage_of(x)) for x in results)

    def _fake(self, node: fx.Node) -> Any:
        """The tracer's result."""
        value = node.meta.get("example_value", node.meta.get("val"))
        number = iter(range(len(pytree.tree_leaves(value))))

        def place(x: torch.Tensor) -> Place:
            own = (node, next(number))
            # Those of vmap and grad have no memory.
            if x.layout is not torch.strided or is_functorch_wrapped_tensor(x):
                return Place(own, None)
            memory = self._traced.setdefault(storage_of(x), own)
            return Place(memory, layout_of(x).at(self._sizes))

        return pytree.tree_map_only(torch.Tensor, place, value)


def _harmless(node: fx.Node, leaves: Sequence[Any]) -> bool:
    """Whether running the node by itself is informative and has no side effects. Functions without tensors may change
    PyTorch's state; functions of other libraries may do anything."""
    if node.op == "call_module" or any(isinstance(x, SYMBOLS) for x in leaves):
        return False
    module = getattr(node.target, "__module__", None) or "torch"
    if module in ("_operator", "math", "builtins"):
        return True
    if isinstance(node.target, OpOverload):
        known = node.target.namespace in ("aten", "prims")
    else:
        known = module.startswith("torch") and not isinstance(node.target, HigherOrderOperator)
    return known and any(isinstance(x, Place | torch.Tensor) for x in leaves)


def _alike(made: Any, traced: Any) -> bool:
    """Whether both have tensors of equal shapes and types, as far as these are known."""
    mine, theirs = (
        [x for x in pytree.tree_leaves(v) if isinstance(x, Place)] for v in (made, traced)
    )
    return len(mine) == len(theirs) and all(
        y.layout is None
        or (
            x.layout is not None
            and (x.layout.shape, x.layout.dtype) == (y.layout.shape, y.layout.dtype)
        )
        for x, y in zip(mine, theirs, strict=True)
    )
