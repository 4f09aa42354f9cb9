"""Tensors seen as another type, `x.view(torch.int8)`: the same bits, elements of the last dimension split or joined, the lowest bits first."""

from collections.abc import Callable, Mapping
from typing import Any

from monotile.frontends.builder import Builder, load
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import BITS_OF, OF_BITS, Expr, Tensor, Unary, cast, const

Lowering = Callable[..., Any]
_INTEGERS = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}  # by their bytes
_FLOATS = {dtype: op for op, dtype in OF_BITS.items()}


def view_dtype(b: Builder, x: Tensor, dtype: object) -> Tensor:
    """dtype: PyTorch's, of the result."""
    del dtype
    source, target = x.dtype, b.dtype
    if source is target:
        return b.result(lambda *i: load(x, i))
    before, after = source.itemsize, target.itemsize

    def body(*i: Expr) -> Expr:
        if before == after:
            return _value(_word(load(x, i), before), target)
        *lead, last = i
        if before > after:
            parts = before // after
            word = _word(load(x, [*lead, s.floordiv(last, parts)]), before)
            lower = s.mul(s.mod(last, parts), 8 * after)
            return _value(
                cast(s.op("shr", word, cast(lower, word.dtype)), _INTEGERS[after]), target
            )
        parts = after // before
        words = [
            _word(load(x, [*lead, s.add(s.mul(last, parts), k)]), before) for k in range(parts)
        ]
        return _value(_joined(words, before, _INTEGERS[after]), target)

    return b.result(body)


def _word(e: Expr, size: int) -> Expr:
    """The bits of an element of `size` bytes, as a signed integer."""
    return Unary("bits", e) if e.dtype in BITS_OF else cast(e, _INTEGERS[size])


def _joined(words: list[Expr], size: int, dtype: DType) -> Expr:
    total: Expr = const(0, dtype)
    for k, word in enumerate(words):
        part = s.op("bitand", cast(word, dtype), (1 << 8 * size) - 1)
        total = s.op("bitor", total, s.op("shl", part, 8 * size * k))
    return total


def _value(word: Expr, dtype: DType) -> Expr:
    """The element of type `dtype` with these bits."""
    return Unary(_FLOATS[dtype], word) if dtype in _FLOATS else cast(word, dtype)


LOWERINGS: Mapping[str, Lowering] = {"aten.view.dtype": view_dtype}
