"""A network as a function of tensors alone, exported for the compilers of others, which write into memory that they are given."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from monotile.compare.jobs import Absent, first_line
from monotile.runtime.accuracy import tensors
from monotile.runtime.reference import Call


class OfTensors(torch.nn.Module):
    """Takes the tensors among a call's arguments, and gives those of its result, both in their order. All other arguments are fixed."""

    def __init__(self, model: torch.nn.Module, call: Call) -> None:
        super().__init__()
        self.model = model
        leaves, self._tree = pytree.tree_flatten(call)
        self._fixed = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self._given = [isinstance(x, torch.Tensor) for x in leaves]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(inputs)
        leaves = [next(rest) if g else x for g, x in zip(self._given, self._fixed, strict=True)]
        args, kwargs = pytree.tree_unflatten(leaves, self._tree)
        return tuple(tensors(self.model(*args, **kwargs)))


def inputs_of(call: Call) -> tuple[torch.Tensor, ...]:
    """The tensors among the arguments, dense."""
    leaves = pytree.tree_leaves(call)
    return tuple(x.contiguous() for x in leaves if isinstance(x, torch.Tensor))


def exported(network: OfTensors, inputs: Sequence[torch.Tensor]) -> ExportedProgram:
    """Raises Absent if a call changes buffers or arguments."""
    program = torch.export.export(network, tuple(inputs))
    schemas = [getattr(node.target, "_schema", None) for node in program.graph.nodes]
    if any(schema.is_mutable for schema in schemas if schema is not None):
        signature = program.run_decompositions({}).graph_signature  # which says what is changed
        changed = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
        for name in changed.values():
            raise Absent(f"each call changes {name.removeprefix('model.')}")
    return program


def results_of(program: ExportedProgram, device: torch.device) -> list[torch.Tensor]:
    """Memory for the results, which a run writes anew each time."""
    names = program.graph_signature.user_outputs
    nodes: dict[str, Any] = {n.name: n.meta["val"] for n in program.graph.nodes if "val" in n.meta}
    return [
        torch.empty(tuple(map(int, nodes[n].shape)), dtype=nodes[n].dtype, device=device)
        for n in map(str, names)
    ]


def narrowest(model: torch.nn.Module) -> torch.dtype:
    """What the network's parameters are in."""
    held = {p.dtype for p in model.parameters()}
    return next((d for d in (torch.bfloat16, torch.float16) if d in held), torch.float32)


@contextmanager
def converting() -> Generator[None]:
    """A failure within means that the library has no such network."""
    try:
        yield
    except Absent:
        raise
    except Exception as problem:  # of whatever library
        raise Absent(f"it cannot be converted: {first_line(problem)}") from problem
