"""Reductions over some of a tensor's dimensions: the index arithmetic that all of them share."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from monotile.frontends.builder import Builder, load
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Symbolic, Tensor, idx

# Dimensions as PyTorch's reductions take them; None means all.
Dims = int | Sequence[int] | None


class Over(NamedTuple):
    """The reduced dimensions, ascending. keepdim: each stays, with one element."""

    dims: Sequence[int]
    keepdim: bool = False


def reduced_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if k in dims else n for k, n in enumerate(shape))
    return tuple(n for k, n in enumerate(shape) if k not in dims)


def spread(
    rank: int, dims: Sequence[int], keepdim: bool, i: Sequence[Expr], r: Sequence[Expr]
) -> list[Expr]:
    """The index into the operand: `r` at the dimensions `dims`, the output's axes `i` elsewhere."""
    inner = iter(r)
    outer = iter(i)
    index: list[Expr] = []
    for k in range(rank):
        if k in dims:
            index.append(next(inner))
            if keepdim:
                next(outer)
        else:
            index.append(next(outer))
    return index


def reduce_dims(
    b: Builder,
    x: Tensor,
    over: Over,
    combiner: str,
    f: Callable[[Sequence[Expr]], Expr],
    dtype: DType,
    part: str = "",
) -> Tensor:
    """Reduces `f`, called with an index into `x`, over some dimensions."""
    dims, keepdim = over
    shape = reduced_shape(x.shape, dims, keepdim)
    if not dims:  # one element: it is its own sum, and its position is 0
        position = combiner.startswith("arg")
        return b.emit(shape, dtype, lambda *i: idx(0) if position else f(i), part=part)

    def body(*axes: Expr) -> Expr:
        return f(spread(len(x.shape), dims, keepdim, axes[: len(shape)], axes[len(shape) :]))

    return b.emit(
        shape, dtype, body, reduce=[x.shape[d] for d in dims], combiner=combiner, part=part
    )


def masked_beyond_size(b: Builder, x: Tensor, dims: Sequence[int], value: float) -> Tensor:
    """`x` with `value` at positions along `dims` beyond a dynamic size; `x` itself if there are none."""
    sized = [d for d in dims if isinstance(x.shape[d], Symbolic)]
    if not sized:
        return x

    def body(*i: Expr) -> Expr:
        inside = s.both(*(s.lt(i[d], x.shape[d]) for d in sized))
        return s.select(inside, load(x, i), value)

    return b.emit(x.shape, x.dtype, body, part="hidden")


def without(dims: Sequence[int], i: Sequence[Expr]) -> list[Expr]:
    """The index into a tensor that was reduced over `dims`, from an index `i` into the operand."""
    return [e for k, e in enumerate(i) if k not in dims]


def kept(dims: Sequence[int], i: Sequence[Expr], keepdim: bool) -> list[Expr]:
    """The same, where `i` has the dimensions `dims` only if `keepdim`."""
    return without(dims, i) if keepdim else list(i)
