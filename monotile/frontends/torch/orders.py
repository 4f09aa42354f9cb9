"""The memory order of the dimensions of inputs and parameters, such as channels last. The kernel reads them in that order."""

import msgspec
import torch
from torch.export.graph_signature import InputKind

from monotile.analysis.uses import Uses
from monotile.frontends.torch.capture import Captured
from monotile.frontends.torch.export import Exported
from monotile.ir.signature import TensorLeaf
from monotile.transform.layout.align_axes import Order, permuted, rearranged
from monotile.transform.rewrite import map_program


def in_memory_order(captured: Captured, exported: Exported) -> tuple[Captured, dict[str, Order]]:
    """`captured` with dense inputs and parameters that are not row-major permuted to their memory order; and the orders by
    input and parameter name: dimension k in memory is dimension `order[k]` of the tensor. States and initial values of loops
    stay as they are."""
    program = captured.program
    whole = Uses(program).whole
    tensors = {t.name: t for t in program.inputs if t.name not in whole | {*program.states}}
    found = {n: o for n, o in _inputs(captured, exported).items() if n in tensors}
    arranged = {n: permuted(tensors[n], o, n) for n, o in found.items()}
    for w in program.weights:
        (part,) = w.parts  # tables are made later, when layers are rolled
        held, name = captured.parameters.get(part), w.tensor.name
        order = order_of(held) if held is not None else None
        if order is not None and name not in whole and part not in program.states:
            found[part], arranged[name] = order, permuted(w.tensor, order, name)
    if not arranged:
        return captured, {}
    program = map_program(program, lambda s: rearranged(s, arranged))
    now = {n: a.out for n, a in arranged.items()}
    program = msgspec.structs.replace(
        program,
        inputs=tuple(now.get(t.name, t) for t in program.inputs),
        weights=tuple(
            msgspec.structs.replace(w, tensor=now.get(w.tensor.name, w.tensor))
            for w in program.weights
        ),
    )
    parts = captured.parameters, captured.constants, captured.signature, captured.tied
    return Captured(program, *parts), found


def order_of(x: torch.Tensor) -> Order | None:
    """The memory order of a dense tensor that is not row-major; None for any other."""
    if x.is_contiguous():
        return None
    order = tuple(sorted(range(x.dim()), key=lambda d: (-x.stride(d), d)))
    return order if x.permute(order).is_contiguous() else None


def _inputs(captured: Captured, exported: Exported) -> dict[str, Order]:
    nodes = exported.graph.find_nodes(op="placeholder")
    specs = exported.graph_signature.input_specs
    given = [n for n, s in zip(nodes, specs, strict=True) if s.kind is InputKind.USER_INPUT]
    found: dict[str, Order] = {}
    for node, leaf in zip(given, captured.signature.inputs, strict=True):
        value = node.meta.get("val")
        if isinstance(leaf, TensorLeaf) and not leaf.shape and isinstance(value, torch.Tensor):
            order = order_of(value)
            if order is not None:
                found[leaf.tensor.name] = order
    return found
