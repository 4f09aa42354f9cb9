"""Convolutions in one to three dimensions, as contractions over channels and kernel positions.

Padding is a separate Compute before the contraction, so that the contraction's operands are plain
loads. A transposed convolution is the convolution of its dilated operand with the flipped kernel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.padding import padded
from monotile.ir.expr import Expr, Tensor, idx

Lowering = Callable[..., Any]
Sizes = int | Sequence[int]


def _each(sizes: Sizes, rank: int) -> list[int]:
    """One number per spatial dimension."""
    if isinstance(sizes, int):
        return [sizes] * rank
    return list(sizes) * rank if len(sizes) == 1 else list(sizes)


class _Geometry(NamedTuple):
    """One number per spatial dimension; `extra` is the output_padding of a transposed convolution."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    extra: Sequence[int]


def _contract(
    b: Builder,
    x: Tensor,
    weight_at: Callable[[Expr, Expr, Sequence[Expr]], Expr],
    shape: Sequence[int],
    g: _Geometry,
    groups: int,
    part: str,
) -> Tensor:
    """out[n, o, y] = sum over c, k of x[n, first(o) + c, y * stride + k * dilation] * w[o, c, k].

    `x` is padded already; `weight_at` is called with the output channel, the channel inside the group
    and the position in the kernel. Only dimensions where the kernel is wider than 1 are summed over.
    """
    per_group, each = x.shape[1] // groups, shape[1] // groups
    rank = len(g.kernel)
    wide = [k for k, n in enumerate(g.kernel) if n > 1]

    def body(n: Expr, o: Expr, *rest: Expr) -> Expr:
        y, c, inside = rest[:rank], rest[rank], rest[rank + 1 :]
        at_kernel = dict(zip(wide, inside, strict=True))
        k = [at_kernel.get(d, idx(0)) for d in range(rank)]
        channel = c if groups == 1 else s.add(s.mul(s.floordiv(o, each), per_group), c)
        at = [
            s.add(s.mul(e, p), s.mul(q, d))
            for e, q, p, d in zip(y, k, g.stride, g.dilation, strict=True)
        ]
        return s.mul(raised(x, [n, channel, *at]), weight_at(o, c, k))

    return b.emit(
        shape,
        b.dtype.compute if part else b.dtype,  # a part is rounded with the bias
        body,
        reduce=(per_group, *(g.kernel[k] for k in wide)),
        combiner="sum",
        part=part,
    )


def _forward(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    shape: Sequence[int],
    g: _Geometry,
    groups: int,
    part: str,
) -> Tensor:
    if any(g.padding):
        x = padded(b, x, [(0, 0), (0, 0), *((p, p) for p in g.padding)], 0, part="padded")
    return _contract(b, x, lambda o, c, k: raised(weight, [o, c, *k]), shape, g, groups, part)


def _transposed(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    shape: Sequence[int],
    g: _Geometry,
    groups: int,
    part: str,
) -> Tensor:
    """weight: [channels in, channels out of a group, ...kernel]."""
    pairs = [(0, 0), (0, 0)]
    for k, p, d, extra in zip(g.kernel, g.padding, g.dilation, g.extra, strict=True):
        border = (k - 1) * d - p
        pairs.append((border, border + extra))
    x = padded(b, x, pairs, 0, part="spread", step=[1, 1, *g.stride])
    per_group, each = weight.shape[0] // groups, weight.shape[1]

    def weight_at(o: Expr, c: Expr, k: Sequence[Expr]) -> Expr:
        first = s.mul(s.floordiv(o, each), per_group)
        flipped = [s.sub(n - 1, e) for e, n in zip(k, g.kernel, strict=True)]
        if groups == 1:
            return raised(weight, [c, o, *flipped])
        return raised(weight, [s.add(first, c), s.mod(o, each), *flipped])

    dense = g._replace(stride=[1] * len(g.kernel))
    return _contract(b, x, weight_at, shape, dense, groups, part)


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
    """`aten.convolution`: [batch, channels, ...space], the batch dimension may be absent."""
    rank = len(weight.shape) - 2
    if math.prod(b.shape) == 0:
        raise Unsupported("an empty result")
    batched = len(x.shape) == rank + 2
    shape = b.shape if batched else (1, *b.shape)
    if not batched:
        one = x
        x = b.emit((1, *x.shape), x.dtype, lambda *i: load(one, i[1:]), part="batch")
    sizes = (_each(v, rank) for v in (stride, padding, dilation, output_padding))
    part = "product" if bias is not None or not batched else ""
    form = _transposed if transposed else _forward
    product = form(b, x, weight, shape, _Geometry(weight.shape[2:], *sizes), groups, part)
    if not part:
        return product

    def result(*i: Expr) -> Expr:
        v = raised(product, i if batched else [idx(0), *i])
        return v if bias is None else s.add(v, raised(bias, [i[-rank - 1]]))

    return b.result(result)


def _forward_of(rank: int) -> Lowering:
    """conv1d, conv2d, conv3d, in both overloads."""

    def lower(
        b: Builder,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Tensor:
        if isinstance(padding, str):
            x = _named_padding(b, x, weight.shape[2:], padding, _each(dilation, rank))
            padding = 0
        return convolution(b, x, weight, bias, stride, padding, dilation, False, 0, groups)

    return lower


def _named_padding(
    b: Builder, x: Tensor, kernel: Sequence[int], padding: str, dilation: Sequence[int]
) -> Tensor:
    """ "valid": none; "same": as much as the kernel reaches, the odd one at the end."""
    if padding not in ("valid", "same"):
        raise Unsupported(f"padding={padding!r}")
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if padding == "valid" or not any(reach):
        return x
    lead = [(0, 0)] * (len(x.shape) - len(kernel))
    return padded(b, x, [*lead, *((n // 2, n - n // 2) for n in reach)], 0, part="padded")


def transposed(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    return convolution(b, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.convolution": convolution,
    **{f"aten.conv{n}d": _forward_of(n) for n in (1, 2, 3)},
    **{f"aten.conv_transpose{n}d": transposed for n in (1, 2, 3)},
}
