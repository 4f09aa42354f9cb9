"""How a model is called: from the leaves of (args, kwargs) to a Program's inputs, and back."""

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
    """An argument (or a result) that was a plain Python value at capture and is compiled in: it must stay equal."""

    value: Any


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """A result: the Program's output number `index`, or what is at `row` of its first dimensions."""

    index: int
    row: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AliasLeaf:
    """A result that is argument leaf number `leaf`, unchanged."""

    leaf: int


@dataclass(frozen=True, slots=True)
class Signature:
    """inputs and outputs: one entry a pytree leaf; the trees are `torch.utils._pytree` TreeSpecs.

    names: of the argument leaves, for messages, such as "args[0]" or "attention_mask".
    """

    inputs: tuple[TensorLeaf | ValueLeaf, ...]
    names: tuple[str, ...]
    input_tree: Any
    outputs: tuple[OutputLeaf | AliasLeaf | ValueLeaf, ...]
    output_tree: Any

    def moved(self, places: Sequence[OutputLeaf]) -> "Signature":
        """With results where they are now: output k at places[k]."""
        now = (places[x.index] if isinstance(x, OutputLeaf) else x for x in self.outputs)
        return replace(self, outputs=tuple(now))
