"""The calling convention of a model: from the leaves of (args, kwargs) to a Program's inputs, and back to results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from monotile.ir.expr import Tensor

# The weight that a Program which draws random numbers has for the state of its generator: int64 [2], the seed and the calls so far.
RANDOM_STATE = "monotile.random"


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """An argument that feeds the Program input `tensor`. shape: where a call decides it, its dimensions as expressions of Python over
    symbols."""

    tensor: Tensor
    shape: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeLeaf:
    """An argument, or result, that is an int: an expression of Python over symbols."""

    value: str


@dataclass(frozen=True, slots=True)
class ValueLeaf:
    """An argument or result that was a Python value at capture and is compiled in; an argument must stay equal."""

    value: Any


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """A result: output number `index` of the Program, or its part at index `row` of the first dimensions; of what begins there as much as
    has `shape`, row-major, where a call decides it. number: as Python's number, instead of a tensor."""

    index: int
    row: tuple[int, ...] = ()
    shape: tuple[str, ...] = ()
    number: bool = False


@dataclass(frozen=True, slots=True)
class AliasLeaf:
    """A result that is the unchanged argument leaf number `leaf`."""

    leaf: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a call decides. symbols: name, least, most, of the dimensions that arguments have. scalars: the Program's inputs that hold sizes,
    each with what it is: an expression of Python over symbols. counted: symbols that data decide, each with where the Program gives it: results are
    as long as these say. conditions: what holds of the symbols in a call that the Program is for. fixed: the Program is for calls where these symbols,
    by their places among all of the model, are these numbers; `symbols` are the others."""

    symbols: tuple[tuple[str, int, int], ...] = ()
    scalars: tuple[tuple[str, str], ...] = ()
    counted: tuple[tuple[str, OutputLeaf], ...] = ()
    conditions: tuple[str, ...] = ()
    fixed: tuple[tuple[int, int], ...] = ()

    def own(self, symbols: Sequence[int]) -> tuple[int, ...]:
        """The values of `symbols`, of all of the model's."""
        fixed = dict(self.fixed)
        return tuple(n for k, n in enumerate(symbols) if k not in fixed)

    def takes(self, symbols: Sequence[int]) -> bool:
        """Whether the Program is for these values of all of the model's symbols, as far as each one alone says that."""
        pairs = zip(self.own(symbols), self.symbols, strict=True)
        within = all(low <= n <= most for n, (_, low, most) in pairs)
        return within and all(symbols[k] == n for k, n in self.fixed)


InputLeaf = TensorLeaf | ValueLeaf | SizeLeaf
ResultLeaf = OutputLeaf | AliasLeaf | ValueLeaf | SizeLeaf


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a model's `forward` calls an argument. positional: it may be given by its place. optional: its default is None, a text or a number."""

    name: str
    positional: bool = True
    optional: bool = False
    default: bool | int | float | str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """inputs and outputs: one entry per pytree leaf; the trees are `torch.utils._pytree` TreeSpecs.

    names: of the argument leaves, for messages, such as "args[0]" or "attention_mask". parameters: of the model's `forward`, where that is known.
    """

    inputs: tuple[InputLeaf, ...]
    names: tuple[str, ...]
    input_tree: Any
    outputs: tuple[ResultLeaf, ...]
    output_tree: Any
    sizes: Sizes = Sizes()
    parameters: tuple[Parameter, ...] = ()

    def moved(self, places: Sequence[OutputLeaf]) -> "Signature":
        """With output k now at places[k]."""
        now = (
            replace(places[x.index], shape=x.shape, number=x.number)
            if isinstance(x, OutputLeaf)
            else x
            for x in self.outputs
        )
        counted = tuple((name, places[x.index]) for name, x in self.sizes.counted)
        return replace(self, outputs=tuple(now), sizes=replace(self.sizes, counted=counted))
