"""A complex tensor as two real ones, and helpers that emit both."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from monotile.frontends.builder import Builder, element, load
from monotile.frontends.torch.types import to_numpy
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, const, idx


class Pair(NamedTuple):
    """A complex tensor: real and imaginary part, of its shape."""

    real: Tensor
    imag: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.real.shape


Number = Pair | Tensor  # a tensor in a place where numbers may be complex
PARTS: Mapping[torch.dtype, DType] = {
    torch.complex32: DType.F16,
    torch.complex64: DType.F32,
    torch.complex128: DType.F64,
}
Part = Callable[[tuple[Expr, ...]], Expr]


def constant_pair(b: Builder, x: torch.Tensor) -> Pair:
    """A complex constant."""
    return Pair(b.constant(to_numpy(x.real)), b.constant(to_numpy(x.imag)))


def interleaved(b: Builder, x: Tensor) -> Pair:
    """A complex tensor from `x`, whose last dimension of 2 has the components, as in memory."""

    def part(k: int) -> Tensor:
        return b.emit(x.shape[:-1], x.dtype, lambda *i: load(x, (*i, idx(k))), part=Pair._fields[k])

    return Pair(part(0), part(1))


def parts_of(x: Any, dtype: DType) -> tuple[Part, Part | None]:
    """The components of an operand's element; a real operand has no imaginary part."""
    if isinstance(x, Pair):
        return lambda i: element(x.real, i, dtype), lambda i: element(x.imag, i, dtype)
    if isinstance(x, complex):
        return lambda _: const(x.real, dtype), lambda _: const(x.imag, dtype)
    return lambda i: element(x, i, dtype), None


def pair(b: Builder, real: Part, imag: Part) -> Pair:
    """The operator's result, from the elements of its components."""
    parts = zip(Pair._fields, (real, imag), strict=True)
    return Pair(*(b.emit(b.shape, b.dtype, lambda *i, f=f: f(i), part=name) for name, f in parts))


def zero(b: Builder) -> Part:
    return lambda _: const(0.0, b.dtype.compute)
