"""Merges tensors that torch.export has lifted twice.

A tensor that a module holds as a buffer, and some other object of the model as well (a static cache of transformers, say), is two
placeholders of the graph with one memory: a buffer that nobody reads, and a constant that the model updates. Here it is one again.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputSpec,
    TensorArgument,
)

from monotile.wrapped import is_wrapped, plain_tensors


def lifted_once(exported: ExportedProgram) -> ExportedProgram:
    """`exported` with constants that are the memory of a buffer or parameter replaced by these."""
    specs = exported.graph_signature.input_specs
    held = {
        memory_of(x): k
        for k, s in enumerate(specs)
        if s.kind in (InputKind.BUFFER, InputKind.PARAMETER)
        and (x := _tensor(exported, s)) is not None
    }
    again = {
        k: held[memory_of(x)]
        for k, s in enumerate(specs)
        if s.kind is InputKind.CONSTANT_TENSOR
        and (x := _tensor(exported, s)) is not None
        and memory_of(x) in held
    }
    if not again:
        return exported
    graph = copy.deepcopy(exported.graph)
    nodes: list[fx.Node] = list(graph.find_nodes(op="placeholder"))
    for k, first in again.items():
        nodes[k].replace_all_uses_with(nodes[first])
        graph.erase_node(nodes[k])
    return with_graph(exported, graph, [s for k, s in enumerate(specs) if k not in again])


def with_graph(
    exported: ExportedProgram,
    graph: fx.Graph,
    inputs: Iterable[InputSpec] | None = None,
    root: fx.GraphModule | None = None,
    constants: dict[str, Any] | None = None,
) -> ExportedProgram:
    """`exported`, which stays as it is, with another graph of the same results. inputs: where there are others. root: has what the graph reads as
    attributes, where `exported` has not. constants: where there are others."""
    return ExportedProgram(
        root or exported.graph_module,
        graph,
        _signature(exported, graph, inputs),
        exported.state_dict,
        exported.range_constraints,
        copy.deepcopy(exported.module_call_graph),
        exported.example_inputs,
        exported.constants if constants is None else constants,
        verifiers=exported.verifiers,
    )


def _signature(
    exported: ExportedProgram, graph: fx.Graph, inputs: Iterable[InputSpec] | None
) -> ExportGraphSignature:
    """Of `exported` with the names of `graph`, which a copy may not keep."""
    signature = copy.deepcopy(exported.graph_signature)
    if inputs is not None:
        signature.input_specs = copy.deepcopy(list(inputs))
    (results,) = graph.output_node().args
    assert isinstance(results, (tuple, list))
    nodes = [*graph.find_nodes(op="placeholder"), *results]
    for spec, node in zip([*signature.input_specs, *signature.output_specs], nodes, strict=True):
        if not isinstance(node, fx.Node):
            continue
        if isinstance(spec.arg, ConstantArgument) and isinstance(spec, OutputSpec):
            spec.arg = TensorArgument(node.name)
        else:
            spec.arg.name = node.name
    return signature


def memory_of(x: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same memory with the same layout."""
    if is_wrapped(x):
        return tuple(memory_of(inner) for _, inner in plain_tensors("", x))
    start = x.untyped_storage().data_ptr() or id(x)
    return (start, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype, str(x.device))


def _tensor(exported: ExportedProgram, spec: InputSpec) -> torch.Tensor | None:
    name = spec.target or ""
    found = exported.state_dict.get(name, exported.constants.get(name))
    return found if isinstance(found, torch.Tensor) else None
