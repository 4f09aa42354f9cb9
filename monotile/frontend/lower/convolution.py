"""Convolutions in one to three dimensions, as contractions over channels and kernel positions.

Padding is a Compute of its own in front of the contraction, so that the contraction's operands are plain
loads; a transposed convolution is the convolution of its operand, spread by the stride, with the
kernel turned round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontend.builder import Builder, Unsupported, raised
from monotile.frontend.lower import scalar as s
from monotile.frontend.lower.padding import padded
from monotile.ir.expr import Expr, Tensor

Lowering = Callable[..., Any]
Sizes = int | Sequence[int]


def _each(sizes: Sizes, rank: int) -> list[int]:
    """One number a spatial dimension."""
    if isinstance(sizes, int):
        return [sizes] * rank
    return list(sizes) * rank if len(sizes) == 1 else list(sizes)


def _contract(
    b: Builder,
    x: Tensor,
    weight_at: Callable[[Expr, Expr, Sequence[Expr]], Expr],
    bias: Tensor | None,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """out[n, o, y] = bias[o] + sum over c, k of x[n, first(o) + c, y * stride + k * dilation] * w[o, c, k].

    `x` is padded already; `weight_at` is called with the output channel, the channel inside the group
    and the position in the kernel.
    """
    per_group = x.shape[1] // groups
    each = b.shape[1] // groups

    def body(*axes: Expr) -> Expr:
        n, o, *rest = axes
        y, c, k = rest[: len(kernel)], rest[len(kernel)], rest[len(kernel) + 1 :]
        channel = c if groups == 1 else s.add(s.mul(s.floordiv(o, each), per_group), c)
        at = [
            s.add(s.mul(e, p), s.mul(q, d))
            for e, q, p, d in zip(y, k, stride, dilation, strict=True)
        ]
        return s.mul(raised(x, [n, channel, *at]), weight_at(o, c, k))

    part = "" if bias is None else "product"
    product = b.emit(b.shape, b.dtype, body, reduce=(per_group, *kernel), combiner="sum", part=part)
    if bias is None:
        return product
    return b.result(lambda *i: s.add(raised(product, i), raised(bias, [i[1]])))


def convolution(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    *_: object,
) -> Tensor:
    """`aten.convolution`, which every convolution decomposes to: x is [batch, channels, ...space]."""
    rank = len(weight.shape) - 2
    if math.prod(b.shape) == 0:
        raise Unsupported("an empty result")
    kernel = weight.shape[2:]
    steps, around, spread = _each(stride, rank), _each(padding, rank), _each(dilation, rank)
    if transposed:
        return _transposed(
            b, x, weight, bias, steps, around, spread, _each(output_padding, rank), groups
        )
    if any(around):
        pairs = [(0, 0), (0, 0), *((p, p) for p in around)]
        x = padded(b, x, pairs, 0, part="padded")
    return _contract(
        b,
        x,
        lambda o, c, k: raised(weight, [o, c, *k]),
        bias,
        kernel,
        steps,
        spread,
        groups,
    )


def _transposed(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """weight: [channels in, channels out of a group, ...kernel]."""
    kernel = weight.shape[2:]
    pairs = [(0, 0), (0, 0)]
    for k, p, d, extra in zip(kernel, padding, dilation, output_padding, strict=True):
        border = (k - 1) * d - p
        pairs.append((border, border + extra))
    x = padded(b, x, pairs, 0, part="spread", step=[1, 1, *stride])
    per_group, each = weight.shape[0] // groups, weight.shape[1]

    def weight_at(o: Expr, c: Expr, k: Sequence[Expr]) -> Expr:
        first = s.mul(s.floordiv(o, each), per_group)
        turned = [s.sub(n - 1, e) for e, n in zip(k, kernel, strict=True)]
        if groups == 1:
            return raised(weight, [c, o, *turned])
        return raised(weight, [s.add(first, c), s.mod(o, each), *turned])

    ones = [1] * len(kernel)
    return _contract(b, x, weight_at, bias, kernel, ones, dilation, groups)


LOWERINGS: Mapping[str, Lowering] = {"aten.convolution": convolution}
