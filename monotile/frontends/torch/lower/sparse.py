"""Declarations of zeros."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, load
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, MaskTensor, Tensor, cast, const
from monotile.ir.program import compute

Lowering = Callable[..., Any]


def sparse(b: Builder, x: Tensor, grain: Sequence[int]) -> Tensor:
    """`x` where its block is nonzero, else 0: blocks of `grain` along the last dimensions."""
    whole = (1,) * (len(x.shape) - len(grain)) + tuple(grain)
    over = [d for d, g in enumerate(whole) if g > 1]
    named = b.tensor([n // g for n, g in zip(x.shape, whole, strict=True)], DType.BOOL, "nonzero")
    mask = MaskTensor(named.name, named.shape, named.dtype)

    def some(*axes: Expr) -> Expr:
        """Whether an element of a block is not zero."""
        at = list(axes[: len(whole)])
        for d, i in zip(over, axes[len(whole) :], strict=True):
            at[d] = s.add(s.mul(at[d], whole[d]), i)
        return cast(load(x, at), DType.BOOL)

    reduce = tuple(whole[d] for d in over)
    b.append(compute(mask, some, reduce=reduce, combiner="any" if over else None, origin=b.origin))

    if not over and x.dtype is DType.BOOL:
        return b.result(lambda *i: load(mask, i))

    def body(*i: Expr) -> Expr:
        block = [s.floordiv(e, g) for e, g in zip(i, whole, strict=True)]
        return s.select(load(mask, block), load(x, i), const(0, x.dtype))

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {"monotile.sparse": sparse}
