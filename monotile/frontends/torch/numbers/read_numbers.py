"""Refuses numbers that Python has read from tensors during torch.export and that calls may change.

If another object (such as a static cache of transformers) holds a tensor that is no argument, parameter or buffer of the traced module, PyTorch gives
its present value, as if no call changed it.
"""

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from monotile.errors import CaptureError
from monotile.frontends.torch.graph import assertions
from monotile.frontends.torch.origin import origin

_READS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def check_numbers(exported: ExportedProgram) -> None:
    """Raises CaptureError if `exported` contains a number as a constant that a call may change, or uses a number that depends on data."""
    specs = exported.graph_signature.input_specs
    given = {s.arg.name for s in specs if s.kind is InputKind.USER_INPUT}
    varying: set[fx.Node] = set()
    idle = assertions(exported.graph)
    for node in exported.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        changes = schema is not None and schema.is_mutable
        if node.name in given or changes or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
        symbolic = isinstance(node.meta.get("val"), _SYMBOLS)
        if node.target not in _READS or (symbolic and node in idle):
            continue
        if symbolic:
            raise CaptureError(
                f"{node.target} makes a number or a shape from a tensor's values, which is data-dependent, at {origin(node.stack_trace)}: keep the value in a tensor, or move this out of the"
                " model"
            )
        if node in varying:
            raise CaptureError(
                f"{node.target} makes a number from a tensor that each call changes, at {origin(node.stack_trace)}: tracing fixes the"
                " present value. Keep it in a tensor"
            )
