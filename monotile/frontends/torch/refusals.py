"""Refuses inputs and results of an exported graph that a kernel cannot have."""

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import origin


def refuse_devices(exported: ExportedProgram) -> None:
    """Refuses tensors on a device without an input: a kernel's results are on the device of its inputs."""
    given = [n.meta.get("val") for n in exported.graph.find_nodes(op="placeholder")]
    places = {x.device.type for x in given if isinstance(x, torch.Tensor)}
    made = exported.graph.output_node().all_input_nodes
    for node in made:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and places and value.device.type not in places:
            raise CaptureError(
                f"the model makes {node.name} on {value.device.type}, its inputs are on {', '.join(sorted(places))}:"
                " create it on their device and move it after the call"
            )


def refused_object(exported: ExportedProgram, node: fx.Node, spec: InputSpec) -> CaptureError:
    """The error for an input of the graph that is not a tensor."""
    held = exported.constants.get(spec.target or "")
    user = next(iter(node.users), node)
    where = f", at {origin(user.stack_trace)}" if origin(user.stack_trace) else ""
    if not isinstance(held, torch.Generator):
        return CaptureError(
            f"{user.target} uses an object that is no tensor, {type(held).__name__}{where}: compute this outside the model"
        )
    return CaptureError(
        f"{user.target} draws numbers from a torch.Generator{where}: draw without one, as a compiled model has a state of its own, or draw"
        " outside the model and pass the numbers"
    )
