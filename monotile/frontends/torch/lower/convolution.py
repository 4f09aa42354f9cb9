"""Convolutions in one to three dimensions, as contractions over channels and kernel positions.

Padding is a separate Compute before the contraction, so that the contraction's operands are plain
loads. A transposed convolution with steps is as many small convolutions as there are places within a step, each with every
step-th place of the kernel; they are computed as one with so many times the channels. With a dilation as well, or of a size that is
known in the call only, it is the convolution of its dilated operand with the flipped kernel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.padding import padded
from monotile.frontends.torch.sizes.size import Size
from monotile.ir.expr import Expr, Tensor, const, idx

Lowering = Callable[..., Any]
Sizes = int | Sequence[int]


def _each(sizes: Sizes, rank: int) -> list[int]:
    """One number per spatial dimension."""
    if isinstance(sizes, int):
        return [sizes] * rank
    return list(sizes) * rank if len(sizes) == 1 else list(sizes)


class _Geometry(NamedTuple):
    """Parameters per spatial dimension; `extra` is the output_padding of a transposed convolution."""

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

    `x` is padded already. `weight_at` is called with the output channel, the channel inside the group and the position in the kernel. Only
    dimensions with a kernel wider than 1 are summed over.
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


class _Taps(NamedTuple):
    """The inputs of a transposed convolution's results along one dimension. The result at q * step + place reads the inputs q + first, q +
    first + 1, ..., `number` in all, with the kernel positions place + before - step * (first, ...), if these are inside the kernel."""

    step: int
    before: int
    first: int
    number: int

    @staticmethod
    def of(kernel: int, step: int, padding: int) -> "_Taps":
        first = -((kernel - 1 - padding) // step)
        return _Taps(step, padding, first, (step - 1 + padding) // step - first + 1)

    def kernel(self, place: Expr, tap: Expr) -> Expr:
        return s.sub(s.add(place, self.before - self.step * self.first), s.mul(tap, self.step))

    def inside(self, at: Expr, extent: int) -> list[Expr]:
        """Whether a kernel position exists, where that depends on the place."""
        last = self.first + self.number - 1
        tests = [s.ge(at, 0)] if self.before < self.step * last else []
        above = self.step - 1 + self.before - self.step * self.first >= extent
        return [*tests, s.lt(at, extent)] if above else tests


def _in_places(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    shape: Sequence[int],
    g: _Geometry,
    groups: int,
    part: str,
) -> Tensor:
    """A transposed convolution as one product over places within the stride: products[n, o, q, place, ...], of which the result is a view."""
    taps = [_Taps.of(k, q, p) for k, q, p in zip(g.kernel, g.stride, g.padding, strict=True)]
    sizes = [-(-n // t.step) for n, t in zip(shape[2:], taps, strict=True)]
    ends = (
        n + t.first + t.number - 1 - m for t, n, m in zip(taps, sizes, x.shape[2:], strict=True)
    )
    reach = [(-t.first, end) for t, end in zip(taps, ends, strict=True)]
    if any(p != (0, 0) for p in reach):
        x = padded(b, x, [(0, 0), (0, 0), *reach], 0, part="padded")
    per_group, each = weight.shape[0] // groups, weight.shape[1]
    wide = [d for d, t in enumerate(taps) if t.number > 1]
    split = ((m, t.step) if t.step > 1 else (m,) for t, m in zip(taps, sizes, strict=True))
    own = [n for pair in split for n in pair]

    def body(n: Expr, o: Expr, *rest: Expr) -> Expr:
        sides, c, inside = iter(rest), rest[len(own)], rest[len(own) + 1 :]
        at_tap = dict(zip(wide, inside, strict=True))
        at: list[Expr] = []
        in_kernel: list[Expr] = []
        tests: list[Expr] = []
        for d, t in enumerate(taps):
            tap, q = at_tap.get(d, idx(0)), next(sides)
            at.append(s.add(q, tap))
            in_kernel.append(t.kernel(next(sides) if t.step > 1 else idx(0), tap))
            tests += t.inside(in_kernel[-1], g.kernel[d])
        channel = c if groups == 1 else s.add(s.mul(s.floordiv(o, each), per_group), c)
        w = raised(weight, [channel, o if groups == 1 else s.mod(o, each), *in_kernel])
        kept = s.select(s.both(*tests), w, const(0, w.dtype))
        return s.mul(raised(x, [n, channel, *at]), kept)

    dtype = b.dtype.compute if part else b.dtype
    terms = (per_group, *(taps[d].number for d in wide))
    products = b.emit((*shape[:2], *own), dtype, body, reduce=terms, combiner="sum", part="places")
    return _from_places(b, products, taps, shape, part)


def _from_places(b: Builder, products: Tensor, taps: Sequence[_Taps], shape: Sequence[int], part: str) -> Tensor:  # fmt: skip
    def view(n: Expr, o: Expr, *y: Expr) -> Expr:
        at: list[Expr] = []
        for e, t in zip(y, taps, strict=True):
            at += [s.floordiv(e, t.step), s.mod(e, t.step)] if t.step > 1 else [e]
        return load(products, [n, o, *at])

    return b.emit(shape, products.dtype, view, part=part)


def _transposed(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    shape: Sequence[int],
    g: _Geometry,
    groups: int,
    part: str,
) -> Tensor:
    """weight: [input channels, output channels per group, ...kernel]."""
    steady = not any(isinstance(n, Size) for n in (*x.shape, *shape))
    if steady and max(g.stride) > 1 and max(g.dilation) == 1:
        return _in_places(b, x, weight, shape, g, groups, part)
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
    """`aten.convolution`: [batch, channels, ...space]; the batch dimension may be absent."""
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
    """Lowers conv1d, conv2d or conv3d, in both overloads."""

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
    """ "valid": no padding; "same": as much as the kernel reaches, with the odd element at the end."""
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
