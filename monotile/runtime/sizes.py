"""The sizes of a call: read from its arguments' shapes, checked, and the values computed from them."""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from monotile.errors import InputError
from monotile.ir.signature import OutputLeaf, Signature, SizeLeaf, TensorLeaf
from monotile.wrapped import real_of

Shape = tuple[int, ...]


class CallSizes(NamedTuple):
    """The sizes of a call. scalars: the Program's inputs that hold sizes, and the bits of float64 numbers, in its order. results: the
    shapes of the outputs' leaves that depend on sizes, and the results that are numbers, in their order; with data-dependent sizes see
    `SizeReader.results`."""

    scalars: tuple[int, ...]
    results: tuple[Shape | int, ...]
    symbols: tuple[int, ...] = ()


NO_SIZES = CallSizes((), ())


class _Place(NamedTuple):
    """Where a symbol is read: dimension `dim` of argument `leaf`, or the argument itself, is symbol * factor + offset. Without an argument
    the symbol is `offset`."""

    leaf: int | None
    dim: int | None
    factor: int
    offset: int


class SizeReader:
    """Reads the sizes of calls with a given signature. `read` takes a few microseconds: all expressions are compiled to one function."""

    def __init__(self, signature: Signature, wanted: Sequence[str]) -> None:
        """wanted: the Program's inputs that are sizes, in the launch's order."""
        self._signature = signature
        self._ranges = signature.sizes.symbols
        names = [n for n, _, _ in self._ranges]
        self._places = [self._place(*r) for r in self._ranges]
        self._shaped = [
            (k, leaf.shape if isinstance(leaf, TensorLeaf) else (leaf.value,))
            for k, leaf in enumerate(signature.inputs)
            if isinstance(leaf, SizeLeaf) or (isinstance(leaf, TensorLeaf) and leaf.shape)
        ]
        results = [
            _tuple(leaf.shape) if isinstance(leaf, OutputLeaf) else leaf.value
            for leaf in signature.outputs
            if isinstance(leaf, SizeLeaf) or (isinstance(leaf, OutputLeaf) and leaf.shape)
        ]
        texts = dict(signature.sizes.scalars)
        self._expected: Callable[..., tuple[Shape, ...]] = _function(
            names, [_tuple(texts) for _, texts in self._shaped]
        )
        self._conditions = signature.sizes.conditions
        self._hold = _function(names, self._conditions) if self._conditions else None
        self._scalars = _function(names, [texts[n] for n in wanted])
        self.counted = [place for _, place in signature.sizes.counted]
        self._results = _function([*names, *(n for n, _ in signature.sizes.counted)], results)

    def symbols(self, leaves: Sequence[object]) -> tuple[int, ...]:
        """The values of the symbols, for a call with these argument leaves."""
        return tuple(self._found(place, leaves) for place in self._places)

    def holds(self, symbols: tuple[int, ...]) -> bool:
        """Whether the Program's conditions hold; the symbols are in their ranges."""
        return self._hold is None or all(self._hold(*symbols))

    def read(self, leaves: Sequence[object], symbols: tuple[int, ...]) -> CallSizes:
        """The sizes of a call. Raises InputError for an argument that is out of range or does not fit the others."""
        for k, ((_, low, high), n) in enumerate(zip(self._ranges, symbols, strict=True)):
            if not low <= n <= high:
                raise self._out_of_range(k, n)
        if not self.holds(symbols):
            raise self._violated_guards(symbols)
        for (leaf, _), wanted in zip(self._shaped, self._expected(*symbols), strict=True):
            given = leaves[leaf]
            got = tuple(real_of(given).shape) if isinstance(given, torch.Tensor) else (given,)
            if got != wanted:
                raise self._unrelated(leaf, given, symbols)
        scalars = tuple(_bits(x) if isinstance(x, float) else x for x in self._scalars(*symbols))
        return CallSizes(scalars, () if self.counted else self._results(*symbols), symbols)

    def results(self, sizes: CallSizes, outputs: Sequence[torch.Tensor]) -> tuple[Shape | int, ...]:
        """`CallSizes.results` of a call with these `outputs`; waits for the call if sizes are data-dependent."""
        if not self.counted:
            return sizes.results
        counts = [int(outputs[x.index][x.row]) for x in self.counted]
        return self._results(*sizes.symbols, *counts)

    def _found(self, place: _Place, leaves: Sequence[object]) -> int:
        if place.leaf is None:
            return place.offset
        given = leaves[place.leaf]
        if place.dim is None:
            if type(given) is not int:
                raise InputError(f"{self._signature.names[place.leaf]}: expected an int, got {type(given).__name__}")  # fmt: skip
            n = given
        else:
            if not isinstance(given, torch.Tensor) or given.dim() <= place.dim:
                got = f"a shape of {list(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__  # fmt: skip
                raise InputError(
                    f"{self._signature.names[place.leaf]}: expected a tensor of {len(self._texts(place.leaf))} dimensions, got {got}"
                )
            n = given.shape[place.dim]
        return (n - place.offset) // place.factor

    def _texts(self, leaf: int) -> tuple[str, ...]:
        return next(texts for k, texts in self._shaped if k == leaf)

    def _place(self, name: str, low: int, high: int) -> _Place:
        """The simplest place of a symbol, where a dimension or argument is a linear expression of it alone."""
        if low == high:
            return _Place(None, None, 1, low)
        found: list[_Place] = []
        for k, leaf in enumerate(self._signature.inputs):
            if isinstance(leaf, SizeLeaf):
                found += _linear(name, leaf.value, k, None)
            elif isinstance(leaf, TensorLeaf):
                for dim, text in enumerate(leaf.shape):
                    found += _linear(name, text, k, dim)
        if not found:
            raise InputError(f"no dimension of an argument says what {name} is")
        return min(found, key=lambda p: (p.factor, abs(p.offset)))

    def _words(self, place: _Place) -> str:
        assert place.leaf is not None
        name = self._signature.names[place.leaf]
        return name if place.dim is None else f"dimension {place.dim} of {name}"

    def _out_of_range(self, k: int, n: int) -> InputError:
        place, (_, low, high) = self._places[k], self._ranges[k]
        least, most = (x * place.factor + place.offset for x in (low, high))
        return InputError(
            f"{self._words(place)} is {n * place.factor + place.offset}, and the model was compiled for {least} to {most}: compile again"
            " with another range in dynamic_shapes"
        )

    def _violated_guards(self, symbols: tuple[int, ...]) -> InputError:
        assert self._hold is not None
        held = zip(self._conditions, self._hold(*symbols), strict=True)
        failed = " and ".join(text for text, holds in held if not holds)
        return InputError(
            f"the model was compiled for sizes with {failed}, which does not hold where {self._known(symbols, failed)}: it takes another path"
            " for these sizes, so compile it for them separately"
        )

    def _known(self, symbols: tuple[int, ...], *texts: str) -> str:
        """The values of the symbols in these expressions, and where each was read."""
        return ", ".join(
            f"{n} = {v} ({self._words(p)})"
            for (n, _, _), v, p in zip(self._ranges, symbols, self._places, strict=True)
            if p.leaf is not None and any(n in t for t in texts)
        )

    def _unrelated(self, leaf: int, given: object, symbols: tuple[int, ...]) -> InputError:
        names = [n for n, _, _ in self._ranges]
        texts = self._texts(leaf)
        wanted: list[int] = [*_function(names, texts)(*symbols)]
        got = list(given.shape) if isinstance(given, torch.Tensor) else given
        return InputError(
            f"{self._signature.names[leaf]}: expected [{', '.join(texts)}] = {wanted}, got {got}, where {self._known(symbols, *texts)}"
        )


def _bits(x: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def _tuple(texts: Sequence[str]) -> str:
    return f"({''.join(f'{t}, ' for t in texts)})"


def _function(names: Sequence[str], texts: Sequence[str]) -> Callable[..., Any]:
    """A function from the symbols to the values of the expressions."""
    return eval(f"lambda {', '.join(names)}: {_tuple(texts)}", {"__builtins__": {"min": min, "max": max, "abs": abs, "float": float, "round": round}, "math": math})  # fmt: skip


def _linear(name: str, text: str, leaf: int, dim: int | None) -> list[_Place]:
    """The place, if the expression is a multiple of the symbol plus a number."""
    try:
        f = _function([name], [text])
        a, b, c = (f(x)[0] for x in (0, 1, 2))
    except (NameError, ZeroDivisionError):
        return []
    return [_Place(leaf, dim, b - a, a)] if b - a == c - b > 0 else []
