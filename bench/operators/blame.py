"""Of samples that are refused together: which of them are meant, and why."""

from collections.abc import Sequence
from typing import Any

import torch.utils._pytree as pytree
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from monotile.frontend.capture import obstacles


def blame(exported: ExportedProgram, results: Sequence[Any]) -> dict[int, str]:
    """The samples whose results need an operator that has no lowering, by number, and the first such operator.

    results: PyTorch's of each sample, in the order of the outputs of `exported`.
    """
    plain, problems = obstacles(exported)
    reasons: dict[fx.Node, str] = {}
    for node in plain.graph.nodes:
        before = (reasons[n] for n in node.all_input_nodes if n in reasons)
        why = problems.get(node.name) or next(before, None)
        if why:
            reasons[node] = why
    specs = plain.graph_signature.output_specs
    outputs = plain.graph.output_node().args[0]
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
