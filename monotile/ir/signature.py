"""The calling convention of a model: from the leaves of (args, kwargs) to a Program's inputs, and back to results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from monotile.ir.expr import Tensor


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """An argument that feeds the Program input `tensor`."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class ValueLeaf:
    """An argument or result that was a Python value at capture and is compiled in; an argument must stay equal."""

    value: Any


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """A result: output number `index` of the Program, or its part at index `row` of the first dimensions."""

    index: int
    row: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AliasLeaf:
    """A result that is the unchanged argument leaf number `leaf`."""

    leaf: int


@dataclass(frozen=True, slots=True)
class Signature:
    """inputs and outputs: one entry per pytree leaf; the trees are `torch.utils._pytree` TreeSpecs.

    names: of the argument leaves, for messages, such as "args[0]" or "attention_mask".
    """

    inputs: tuple[TensorLeaf | ValueLeaf, ...]
    names: tuple[str, ...]
    input_tree: Any
    outputs: tuple[OutputLeaf | AliasLeaf | ValueLeaf, ...]
    output_tree: Any

    def moved(self, places: Sequence[OutputLeaf]) -> "Signature":
        """With output k now at places[k]."""
        now = (places[x.index] if isinstance(x, OutputLeaf) else x for x in self.outputs)
        return replace(self, outputs=tuple(now))
