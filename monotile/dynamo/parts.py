"""Splits a graph with unsupported operators: kernels for the supported ones, PyTorch between them."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from monotile.frontends.torch.capture import obstacles

_MARK = "monotile"


class Split(NamedTuple):
    """module: runs like the original. parts: its submodules that are to become kernels. reasons: why it is not one kernel."""

    module: fx.GraphModule
    parts: tuple[str, ...]
    reasons: tuple[str, ...]


def split(exported: ExportedProgram) -> Split:
    """Splits into as few parts as the order of the operators allows."""
    plain, problems = obstacles(exported)
    for node in plain.graph.nodes:
        node.meta[_MARK] = node.name in problems
    module: Any = plain.module(check_guards=False)
    partitioner = CapabilityBasedPartitioner(module, _Lowered(), allows_single_node_partition=True)
    found = [p for p in partitioner.propose_partitions() if any(map(_computes, p.nodes))]
    before = {name for name, _ in module.named_children()}
    fused = partitioner.fuse_partitions(found)
    parts = [name for name, _ in fused.named_children() if name not in before]
    return Split(fused, tuple(parts), tuple(dict.fromkeys(problems.values())))


def replace(module: fx.GraphModule, name: str, run: Callable[..., object]) -> None:
    """Replaces the submodule `name` by `run`."""
    delattr(module, name)
    module.add_submodule(name, _Part(run))


class _Part(torch.nn.Module):
    def __init__(self, run: Callable[..., object]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: object) -> object:
        return self.run(*args)


class _Lowered(OperatorSupportBase):
    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return node.op == "call_function" and node.meta.get(_MARK) is False


def _computes(node: fx.Node) -> bool:
    """Whether `node` is more than a view or a getitem."""
    if node.target is operator.getitem:
        return False
    return not (isinstance(node.target, OpOverload) and node.target.is_view)
