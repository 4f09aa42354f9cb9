"""The conversions that autocast adds to an operator.

It is found by running the operator on tensors without data: under autocast, which shows what is converted, and then without it on what was
converted. Where both run the same operators of the lowest level, that is all that autocast does; else it is these that the operator becomes.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from monotile.frontends.torch.rewriting.aliasing import changed
from monotile.wrapped import is_wrapped

DEVICES = ("cpu", "cuda")
Mode = Mapping[str, torch.dtype]  # by device type: the dtype that numbers are converted to


class Conversion(NamedTuple):
    """casts: operands, by their place in `all_input_nodes`, and what they become, in this order. named: further arguments of the operator."""

    casts: tuple[tuple[int, torch.dtype], ...] = ()
    named: tuple[tuple[str, torch.dtype], ...] = ()


NOTHING = Conversion()
Found = Conversion | fx.GraphModule  # the operators it becomes: of `all_input_nodes`
# Layers that stay whole and compute in their operands' types, as PyTorch's tracer has it: its kernels convert the products inside alone.
_WHOLE = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)
_TO_FLOAT32 = (("dtype", torch.float32),)  # of sums and softmax on CUDA


def ambient() -> Mode:
    """The autocast mode of the caller."""
    on = [d for d in DEVICES if torch.is_autocast_enabled(d)]
    return {d: torch.get_autocast_dtype(d) for d in on}


@contextmanager
def within(mode: Mode) -> Generator[None]:
    """Within, PyTorch's autocast mode is `mode`; unlike `torch.autocast`, also for a device that is not present."""
    before = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES]
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        for device, _, dtype in before:
            torch.set_autocast_enabled(device, device in mode)
            torch.set_autocast_dtype(device, mode.get(device, dtype))
        yield
    finally:
        for device, enabled, dtype in before:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(kept)


class Conversions:
    """Conversions by operator; results are reused for operators with equal arguments."""

    def __init__(self) -> None:
        self._found: dict[object, Found | None] = {}

    def of(self, node: fx.Node, mode: Mode) -> Found | None:
        """The conversions of `node` under `mode`; None if PyTorch has to trace it."""
        values = [n.meta.get("val") for n in node.all_input_nodes]
        devices = {x.device.type for x in values if isinstance(x, torch.Tensor)}
        if node.op != "call_function" or devices.isdisjoint(mode):
            return NOTHING
        if not isinstance(node.target, OpOverload):
            return None if isinstance(node.target, HigherOrderOperator) else NOTHING
        if node.target in _WHOLE or not _may_convert(node.target, devices):
            return NOTHING
        if any(map(is_wrapped, values)):
            return None
        given = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        key = (node.target, tuple(mode.items()), str(pytree.tree_map(_kind, given)))
        if key not in self._found:
            self._found[key] = _tried(node, values, mode)
        return self._found[key]


def _may_convert(op: OpOverload, devices: set[str]) -> bool:
    """Whether autocast changes the operator, or operators that it consists of."""
    if torch.Tag.inplace_view in op.tags:
        return False
    keys = ["CompositeImplicitAutograd", *(f"Autocast{d.upper()}" for d in devices)]
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in keys)  # pyright: ignore[reportPrivateUsage]


def _kind(x: Any) -> Any:
    return (x.dtype, x.device, x.shape, x.stride()) if isinstance(x, torch.Tensor) else x


def _tried(node: fx.Node, values: Sequence[Any], mode: Mode) -> Found | None:
    try:
        with within(mode), torch.no_grad(), _Record(values) as wanted:
            _call(node, values)
    except Exception:  # PyTorch's own trace will raise it
        return None
    converted = [node.all_input_nodes[k] for k, _ in wanted.casts]
    if any(n in converted for n in changed(node)):
        return None
    casts = tuple(wanted.casts)
    for way in (NOTHING, Conversion(casts), Conversion(casts, _TO_FLOAT32)):
        try:
            with within({}), torch.no_grad(), _Record(values) as found:
                given = list(values)
                for k, dtype in way.casts:
                    given[k] = values[k].to(dtype)
                _call(node, given, dict(way.named))
        except Exception:  # it has no such argument
            continue
        if found.calls == wanted.calls:
            return way
    if any(changed(node)):
        return None
    return _lower_everywhere(node, values, mode, wanted) or _taken_apart(node, values, mode)


def _lower_everywhere(
    node: fx.Node, values: Sequence[Any], mode: Mode, wanted: "_Record"
) -> Conversion | None:
    """All floating-point operands converted, if the operators inside then receive the same types."""
    casts = tuple(
        (k, mode[x.device.type])
        for k, x in enumerate(values)
        if isinstance(x, torch.Tensor) and x.dtype is torch.float32 and x.device.type in mode
    )
    given = [v.to(dict(casts)[k]) if k in dict(casts) else v for k, v in enumerate(values)]
    try:
        with within({}), torch.no_grad(), _Record(given) as found:
            _call(node, given)
    except Exception:
        return None
    return Conversion(casts) if found.types == wanted.types else None


def _taken_apart(node: fx.Node, values: Sequence[Any], mode: Mode) -> fx.GraphModule | None:
    if not all(
        isinstance(x, torch.Tensor) and all(type(n) is int for n in x.shape) for x in values
    ):
        return None  # sizes would not be nodes
    with within(mode), torch.no_grad():
        made = make_fx(lambda *given: _call(node, given))(*values)
    known = ("placeholder", "call_function", "output")  # and no constants
    return made if all(n.op in known for n in made.graph.nodes) else None


def _call(node: fx.Node, given: Sequence[Any], named: Mapping[str, Any] | None = None) -> Any:
    by = dict(zip(node.all_input_nodes, given, strict=True))
    args, kwargs = map_arg((node.args, node.kwargs), by.__getitem__)
    assert callable(node.target)
    return node.target(*args, **{**kwargs, **(named or {})})


class _Record(TorchDispatchMode):
    """Records the operators that run within. calls: with their arguments, tensors as numbers in the order in which they appear. casts: conversions
    of `inputs` in front of all else. types: the operators that compute, and the types of their operands."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.calls: list[tuple[Any, str]] = []
        self.casts: list[tuple[int, torch.dtype]] = []
        self.types: list[tuple[Any, list[torch.dtype]]] = []
        self._inputs = inputs
        self._seen = list[torch.Tensor](x for x in inputs if isinstance(x, torch.Tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # queries of autocast
            return func(*args, **kwargs)
        is_cast = func is torch.ops.aten._to_copy.default and [*kwargs] == ["dtype"]
        if is_cast and len(self.casts) == len(self.calls):
            places = (k for k, x in enumerate(self._inputs) if x is args[0])
            self.casts += [(k, kwargs["dtype"]) for k in places]
        if func is not torch.ops.aten._to_copy.default and not func.is_view:
            tensors = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.types.append((func, [x.dtype for x in tensors]))
        self.calls.append((func, str(pytree.tree_map(self._number, (args, kwargs)))))
        found = func(*args, **kwargs)
        pytree.tree_map_only(torch.Tensor, self._number, found)
        return found

    def _number(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        for k, known in enumerate(self._seen):
            if known is x:
                return f"tensor {k}"
        self._seen.append(x)
        return f"tensor {len(self._seen) - 1}"
