"""Of samples that share a graph: which of them a problem with one of its operators is about."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from monotile.frontends.torch.training import is_idle, is_training


def blame(
    exported: ExportedProgram, problems: Mapping[str, str], results: Sequence[Any]
) -> dict[int, str]:
    """The samples whose results need an operator that has a problem, by number, and the first such problem.

    problems: by the node's name. results: PyTorch's of each sample, in the order of the outputs of `exported`.
    """
    reasons: dict[fx.Node, str] = {}
    for node in exported.graph.nodes:
        before = (reasons[n] for n in node.all_input_nodes if n in reasons)
        why = problems.get(node.name) or next(before, None)
        if why:
            reasons[node] = why
    specs = exported.graph_signature.output_specs
    outputs = exported.graph.output_node().args[0]
    assert isinstance(outputs, Sequence)
    given = [n for n, s in zip(outputs, specs, strict=True) if s.kind is OutputKind.USER_OUTPUT]
    found: dict[int, str] = {}
    for k, result in enumerate(results):
        count = len(pytree.tree_leaves(result))
        own, given = given[:count], given[count:]
        why = next((reasons[n] for n in own if isinstance(n, fx.Node) and n in reasons), None)
        if why:
            found[k] = why
    return found


def incomparable(exported: ExportedProgram) -> dict[str, str]:
    """The nodes whose results are no one right answer, or not for Monotile to give."""
    return {n.name: why for n in exported.graph.nodes if (why := _incomparable(n))}


def _incomparable(node: fx.Node) -> str | None:
    if is_training(node):
        return f"{node.target} is in training mode"
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not is_idle(node):
        return f"random: {node.target}"
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    if any(isinstance(v, torch.Tensor) and v.is_complex() for v in values):
        return "complex numbers"
    return None
