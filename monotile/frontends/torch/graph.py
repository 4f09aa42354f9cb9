"""Lowers an fx graph of ATen operators node by node."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from monotile.errors import CaptureError, InternalError, MonotileError, UnsupportedOperatorError
from monotile.frontends.builder import Builder, Type, Unsupported
from monotile.frontends.torch.complex.control import (
    flattened,
    flattened_arguments,
    flattened_types,
    regrouped,
)
from monotile.frontends.torch.complex.lowering import (
    has_lowering,
    is_complex,
    lower_complex,
    part_of,
    stand_in,
)
from monotile.frontends.torch.complex.pair import constant_pair
from monotile.frontends.torch.lower.control import CONTROL
from monotile.frontends.torch.lower.data_dependent import SELECTING, most
from monotile.frontends.torch.lower.strided import dense_order, in_storage_order
from monotile.frontends.torch.origin import HOLDERS, origin
from monotile.frontends.torch.registry import Lowering, find
from monotile.frontends.torch.rewriting.aliasing import changed
from monotile.frontends.torch.sizes.size import Shapes
from monotile.frontends.torch.sizes.slice_sizes import learn_slice
from monotile.frontends.torch.tf32 import STRICT, Tf32
from monotile.frontends.torch.training import is_training
from monotile.frontends.torch.types import results_of, to_numpy
from monotile.ir.expr import Tensor, const

Values = dict[fx.Node, Any]

# Assertions: facts that export has proved, or assumptions of the model's author about the data.
_ASSERTIONS = frozenset(
    {
        "aten._assert_tensor_metadata",
        "aten._assert_scalar",
        "aten._assert_async",
        "aten._linalg_check_errors",
        "aten.sym_constrain_range",
        "aten.sym_constrain_range_for_size",
    }
)
_NUMBERS = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat)
# Operators whose result is a data-dependent number or shape.
_DATA_DEPENDENT = frozenset(
    {
        "aten._local_scalar_dense",
        "aten.item",
        "aten._unique2",
        "aten.unique_dim",
        "aten.unique_consecutive",
    }
)

# Operators that address a tensor's storage. A Program has none; it is the tensor in memory order, if that is dense and unshared.
_BY_STORAGE = frozenset({"aten.as_strided", "aten.as_strided_copy", "aten.as_strided_scatter"})


def lower_graph(
    graph: fx.Graph, values: Values, b: Builder, shapes: Shapes | None = None, tf32: Tf32 = STRICT
) -> list[Any]:
    """Lowers every operator of `graph` into `b`; returns the leaves of its output, in order.

    values: of the placeholders; the values of the other nodes are added. shapes: what symbolic dimensions are. tf32: where products may be of TF32.
    Raises UnsupportedOperatorError with every operator that has no lowering, CaptureError for one with data-dependent shapes or
    numbers.
    """
    problems: list[str] = []
    found = _walk(graph, values, b, _Lowering(shapes or Shapes(), problems, tf32))
    if problems:
        raise UnsupportedOperatorError(_message(problems))
    return found


def survey(
    graph: fx.Graph,
    values: Values,
    b: Builder,
    shapes: Shapes | None = None,
    *,
    in_eval: bool = False,
) -> dict[fx.Node, str]:
    """The operators of `graph` that cannot be lowered, with a message for each. in_eval: as of `is_training`."""
    shapes = shapes or Shapes()
    problems: dict[fx.Node, str] = {}
    lost: set[fx.Node] = set()  # nodes without a static type
    asserted = assertions(graph)
    for node in graph.nodes:
        if node.op == "get_attr":
            values[node] = _attribute(node, b)
        if node.op != "call_function" or node in asserted:
            continue
        inner: list[str] = []
        try:
            if is_training(node, in_eval=in_eval):
                raise Unsupported("in training mode")
            if not lost.isdisjoint(node.all_input_nodes):
                raise Unsupported("its shapes depend on data")
            values[node] = _lower(node, values, b, _Lowering(shapes, inner))
        except (Unsupported, MonotileError, InternalError) as e:
            inner.append(_describe(node, str(e)))
            try:
                values[node] = _stand_in(node, shapes)
            except MonotileError:
                values[node] = None
            if values[node] is None:
                lost.add(node)
        if inner:
            problems[node] = inner[0].strip()
    return problems


def is_lowered(graph_module: fx.GraphModule) -> bool:
    """Whether every operator, also in subgraphs, has a lowering and none updates its arguments."""
    graphs = [m.graph for m in graph_module.modules() if isinstance(m, fx.GraphModule)]
    return all(
        node.op != "call_function"
        or node.target is operator.getitem
        or (find(node.target) is not None and not any(changed(node)))
        or str(node.target) in CONTROL
        or _packet(node) in _ASSERTIONS
        or isinstance(node.meta.get("val"), _NUMBERS)
        for graph in graphs
        for node in graph.nodes
    )


class _Lowering(NamedTuple):
    """shapes: converts symbolic dimensions. problems: a message for each operator without a lowering. tf32: which products may use TF32."""

    shapes: Shapes
    problems: list[str]
    tf32: Tf32 = STRICT

    def nested(self) -> "_Lowering":
        """Of a body inside."""
        return self._replace(shapes=self.shapes.nested())


def _walk(graph: fx.Graph, values: Values, b: Builder, under_way: _Lowering) -> list[Any]:
    """Like `lower_graph`, but adds operators without a lowering to the problems and continues."""
    asserted = assertions(graph)
    for node in graph.nodes:
        match node.op:
            case "placeholder":
                if node not in values:
                    raise InternalError(f"placeholder {node.name} has no value")
            case "get_attr":
                values[node] = _attribute(node, b)
            case "call_function" if node in asserted:
                pass
            case "call_function":
                try:
                    values[node] = _lower(node, values, b, under_way)
                except Unsupported as e:
                    under_way.problems.append(_describe(node, str(e)))
                    values[node] = _stand_in(node, under_way.shapes)
            case "output":
                found = map_arg(node.args[0], lambda n: values[n])
                return list(found) if isinstance(found, tuple | list) else [found]
            case _:
                raise InternalError(f"unexpected fx node {node.op} {node.name}")
    raise InternalError("the graph has no output")


def assertions(graph: fx.Graph) -> set[fx.Node]:
    """Assertions, nodes used only by these, and unused data-dependent numbers."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        number = isinstance(node.meta.get("val"), _NUMBERS)
        dead = (number or bool(node.users)) and found.issuperset(node.users)
        if dead or _packet(node) in _ASSERTIONS:
            found.add(node)
    return found


def _attribute(node: fx.Node, b: Builder) -> Any:
    """A subgraph of control flow, or a constant in a subgraph."""
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    if isinstance(owner, torch.Tensor):
        b.begin(node.name, "", ())
        if owner.is_complex():
            return constant_pair(b, owner)
        return b.constant(to_numpy(owner))
    return owner


def _packet(node: fx.Node) -> str:
    return str(node.target).rpartition(".")[0]


def _lower(node: fx.Node, values: Values, b: Builder, under_way: _Lowering) -> Any:
    args: Any = map_arg(node.args, lambda n: values[n])
    kwargs: Any = map_arg(node.kwargs, lambda n: values[n])
    if node.target is operator.getitem:
        found = args[0][args[1]]
        if found is None and isinstance(node.meta.get("val"), torch.Tensor):
            raise Unsupported(f"result {args[1]} of {node.all_input_nodes[0].target}")
        return found
    if _packet(node) in _DATA_DEPENDENT:
        raise CaptureError(
            f"{node.target} makes a number or a shape from a tensor's values{_where(node)}. Monotile"
            " compiles static graphs: keep the value in a tensor, or move this out of the model"
        )
    if part := part_of(node):
        return values[part[0]][part[1]]
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return under_way.shapes.number(value)
    if isinstance(value, torch.SymBool):
        return None  # its users have it in their own expressions
    stored = _storage_order(node) if _packet(node) in _BY_STORAGE else None
    if str(node.target) == "aten.slice.Tensor":
        learn_slice(under_way.shapes, node, args)
    if (control := CONTROL.get(str(node.target))) is not None:
        return _lower_control(control, node, (args, kwargs), b, under_way)
    if is_complex(node):
        b.tf32 = under_way.tf32.allows(node)
        maker = None if has_lowering(node) else _maker(node)
        if maker is not None:
            b.begin(node.name, origin(node.stack_trace), ())
            return constant_pair(b, maker(*args, **kwargs))
        return lower_complex(b, node, args, kwargs, under_way.shapes)
    lowering = find(node.target)
    maker = None if lowering else _maker(node)
    if lowering is None and maker is None:
        raise Unsupported("")
    if _packet(node) in SELECTING:
        _admit(node, values, under_way.shapes)
    results = results_of(node, under_way.shapes)
    b.begin(node.name, origin(node.stack_trace), results)
    b.tf32 = under_way.tf32.allows(node)
    if stored is not None:
        args = (in_storage_order(b, args[0], stored), *args[1:])
    if maker is not None:
        return b.constant(to_numpy(maker(*args, **kwargs)))
    if len(results) == 1 and _is_empty(results[0]):
        found = b.result(lambda *_: const(0, b.dtype))  # no elements, nothing to compute
        found = (found,) if isinstance(value, list | tuple) else found
    else:
        assert lowering is not None
        found = _applied(lowering, b, node, args, kwargs)
    _check(node, found if isinstance(found, tuple) else (found,), results)
    return found


def _lower_control(
    control: Callable[..., tuple[Any, ...]],
    node: fx.Node,
    call: tuple[Any, Any],
    b: Builder,
    under_way: _Lowering,
) -> tuple[Any, ...]:
    """The results of control flow, among whose operands may be complex tensors."""
    value = node.meta.get("val")
    results = list(value) if isinstance(value, tuple | list) else [value]
    types = flattened_types(results, under_way.shapes)
    b.begin(node.name, origin(node.stack_trace), types)
    b.tf32 = under_way.tf32.allows(node)

    def subgraph(g: fx.GraphModule, given: Sequence[Any], body: Builder) -> list[Any]:
        placeholders = g.graph.find_nodes(op="placeholder")
        whole = regrouped(given, (p.meta.get("val") for p in placeholders))
        own = under_way if body is b else under_way.nested()
        return flattened(_walk(g.graph, dict(zip(placeholders, whole, strict=True)), body, own))

    found = control(b, subgraph, *flattened_arguments(call[0]), **call[1])
    _check(node, found, types)
    return tuple(regrouped(found, results))


def _applied(
    lowering: Lowering, b: Builder, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of `lowering`. Raises Unsupported for an error about an open size, such as NumPy's, which takes none."""
    try:
        return lowering(b, *args, **kwargs)
    except (TypeError, ValueError) as e:
        shapes = [getattr(n.meta.get("val"), "shape", ()) for n in node.all_input_nodes]
        if not any(isinstance(n, torch.SymInt) for shape in shapes for n in shape):
            raise
        raise Unsupported(f"of a size that a call decides: {e}") from e


def _admit(node: fx.Node, values: Values, shapes: Shapes) -> None:
    """Registers the size of the result; its upper bound is the number of the mask's elements."""
    given = [t for t in (values[n] for n in node.all_input_nodes) if isinstance(t, Tensor)]
    for n in node.meta["val"].shape:
        shapes.admit(n, most(_packet(node), given))


def _is_empty(t: Type) -> bool:
    """Whether it has no elements, and no data-dependent size."""
    return 0 in t.shape and all(type(n) is int for n in t.shape)


def _storage_order(node: fx.Node) -> list[int] | None:
    """The dimensions of the operand whose storage `node` addresses, from the slowest in memory to the fastest; None if they are in order. Raises
    Unsupported for an operand that is not the whole of its storage, and where the result would have another order."""
    value = node.all_input_nodes[0].meta["val"]
    if value.untyped_storage().nbytes() == value.numel() * value.element_size():
        if value.is_contiguous():
            return None
        order = dense_order(value.shape, value.stride())
        if order is not None and _packet(node) != "aten.as_strided_scatter":
            return order
    raise Unsupported("of a tensor that is not dense or shares its storage")


def _maker(node: fx.Node) -> Callable[..., Any] | None:
    """The operator, if it creates a tensor without operands or randomness; PyTorch then evaluates it at compile time."""
    op = node.target
    if (
        isinstance(op, OpOverload)
        and torch.Tag.nondeterministic_seeded not in op.tags
        and not node.all_input_nodes
        and isinstance(node.meta.get("val"), torch.Tensor)
    ):
        return op
    return None


def _check(node: fx.Node, found: Sequence[Tensor | None], results: Sequence[Type]) -> None:
    """Checks that the lowered results have PyTorch's types."""
    for k, (t, want) in enumerate(zip(found, results, strict=False)):
        if t is not None and (t.shape, t.dtype) != want:
            raise InternalError(
                f"{node.target} ({node.name}), result {k}: lowered to {t.dtype}{t.shape},"
                f" PyTorch has {want.dtype}{want.shape}{_where(node)}"
            )


def _stand_in(node: fx.Node, shapes: Shapes) -> Any:
    """Placeholder tensors of the right types, so that operators after an unsupported one are checked too."""
    if pair := stand_in(node, shapes):
        return pair
    tensors = [Tensor(f"{node.name}_{k}", *t) for k, t in enumerate(results_of(node, shapes))]
    value, rest = node.meta.get("val"), iter(tensors)
    if not isinstance(value, tuple | list):
        return next(rest, None)
    return tuple(next(rest) if isinstance(v, torch.Tensor) else None for v in value)


def _where(node: fx.Node) -> str:
    where = origin(node.stack_trace)
    return f", at {where}" if where else ""


def _describe(node: fx.Node, detail: str) -> str:
    shapes: list[str] = []
    for n in node.all_input_nodes:
        value = n.meta.get("val")
        if isinstance(value, torch.Tensor):
            shapes.append(f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}")
    detail = f" ({detail})" if detail else ""
    where = _where(node) + _held(node)
    return f"  {node.target}{detail} of {', '.join(shapes) or 'no tensors'}{where}"


def _held(node: fx.Node) -> str:
    """The parameters that are tensor subclasses and created the operator."""
    holders: Mapping[str, str] = getattr(node.graph.owning_module, "meta", {}).get(HOLDERS, {})
    sources = map(_viewed, node.all_input_nodes if holders else ())
    found = dict.fromkeys(holders[n.name] for n in sources if n.name in holders)
    return f", for parameter {' and '.join(found)}" if found else ""


def _viewed(node: fx.Node) -> fx.Node:
    """The source of `node`, through operators of one tensor."""
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node


def _message(problems: Sequence[str]) -> str:
    count = "operator" if len(problems) == 1 else f"{len(problems)} operators"
    return (
        f"no lowering for {count}:\n"
        + "\n".join(dict.fromkeys(problems))
        + "\nCompute these outside the compiled part of the model, or report them as a missing feature"
    )
