"""Pooling and folding: reductions over windows."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, identity, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.padding import padded
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Symbolic, Tensor, cast, const

Lowering = Callable[..., Any]
Sizes = int | Sequence[int]


def each(sizes: Sizes, rank: int) -> list[int]:
    """One number per spatial dimension; PyTorch accepts one for all."""
    if isinstance(sizes, int):
        return [sizes] * rank
    return list(sizes) * rank if len(sizes) == 1 else list(sizes)


def _beyond(
    extents: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[int, int]]:
    """The padding before and after each dimension that puts every window inside."""
    pairs: list[tuple[int, int]] = []
    for n, o, k, q, p, d in zip(extents, out, kernel, stride, padding, dilation, strict=True):
        reach = (o - 1) * q + (k - 1) * d + 1
        pairs.append((p, max(int(reach - n - p), 0)))  # of a size, the most that it can be
    return pairs


def _windows(
    i: Sequence[Expr], r: Sequence[Expr], stride: Sequence[int], dilation: Sequence[int]
) -> list[Expr]:
    """The index of kernel position `r` of window `i`; dimensions before the spatial ones stay."""
    rank = len(r)
    lead = list(i[: len(i) - rank])
    tail = i[len(i) - rank :]
    return lead + [
        s.add(s.mul(e, q), s.mul(k, d))
        for e, k, q, d in zip(tail, r, stride, dilation, strict=True)
    ]


def _max_pool(rank: int, with_indices: bool) -> Lowering:
    def lower(
        b: Builder,
        x: Tensor,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        kernel = each(kernel_size, rank)
        step = kernel if isinstance(stride, Sequence) and not stride else each(stride, rank)
        around, spread = each(padding, rank), each(dilation, rank)
        space = x.shape[-rank:]
        lead = len(x.shape) - rank
        pairs = _beyond(space, b.shape[-rank:], kernel, step, around, spread)
        held = x
        if any(p or q for p, q in pairs):
            held = padded(b, x, [(0, 0)] * lead + pairs, identity("max", x.dtype), part="padded")

        def body(*axes: Expr) -> Expr:
            i, r = axes[: len(b.shape)], axes[len(b.shape) :]
            return raised(held, _windows(i, r, step, spread))

        values = b.result(body, reduce=kernel, combiner="max", index=0)
        if not with_indices:
            return values
        first = b.emit(b.shape, DType.I64, body, reduce=kernel, combiner="argmax", part="first")

        def position(*i: Expr) -> Expr:
            """The position of the maximum in the unpadded plane, row-major."""
            k: Expr = load(first, i)
            inside: list[Expr] = []
            for extent in reversed(kernel):
                inside.append(s.mod(k, extent))
                k = s.floordiv(k, extent)
            at = _windows(i, inside[::-1], step, spread)[lead:]
            flat: Expr = s.sub(at[0], pairs[0][0])
            for e, n, (before, _) in zip(at[1:], space[1:], pairs[1:], strict=True):
                flat = s.add(s.mul(flat, n), s.sub(e, before))
            return flat

        return values, b.result(position, index=1)

    return lower


def _max_pool_backward(rank: int) -> Lowering:
    def lower(
        b: Builder, given: Tensor, x: Tensor, *rest: Any, indices: Tensor | None = None
    ) -> Tensor:
        """Each window's gradient, added where its greatest element stands."""
        at = rest[-1] if indices is None else indices
        lead, space = len(x.shape) - rank, x.shape[-rank:]
        flat = (*x.shape[:lead], math.prod(space))
        zeros = b.emit(flat, b.dtype, lambda *_: const(0, b.dtype), part="zeros")

        def point(*i: Expr) -> tuple[list[Expr], Expr]:
            return [*i[:lead], load(at, i)], load(given, i)

        added = b.scatter(zeros, given.shape, point, "sum", part="added")
        return b.result(lambda *i: load(added, reshape_index(flat, b.shape, i)))

    return lower


def _avg_pool(rank: int) -> Lowering:
    def lower(
        b: Builder,
        x: Tensor,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel = each(kernel_size, rank)
        step = kernel if isinstance(stride, Sequence) and not stride else each(stride, rank)
        around = each(padding, rank)
        space = x.shape[-rank:]
        lead = len(x.shape) - rank
        pairs = _beyond(space, b.shape[-rank:], kernel, step, around, [1] * rank)
        held = x
        if any(p or q for p, q in pairs):
            held = padded(b, x, [(0, 0)] * lead + pairs, 0, part="padded")
        wide = x.dtype.compute

        def body(*axes: Expr) -> Expr:
            i, r = axes[: len(b.shape)], axes[len(b.shape) :]
            return raised(held, _windows(i, r, step, [1] * rank))

        added = b.emit(b.shape, wide, body, reduce=kernel, combiner="sum", part="sum")
        # Only windows that reach over an end hold fewer elements; what ceil_mode adds never counts.
        ragged = [
            (not count_include_pad and p > 0) or q > p
            for p, (_, q) in zip(around, pairs, strict=True)
        ]
        if divisor_override or not any(ragged):
            count = divisor_override or math.prod(kernel)
            return b.result(lambda *i: s.div(load(added, i), count))

        def mean(*i: Expr) -> Expr:
            count: Expr | None = None
            for e, n, k, q, p in zip(i[lead:], space, kernel, step, around, strict=True):
                first = s.sub(s.mul(e, q), p)
                last = s.minimum(s.add(first, k), n + p)
                if not count_include_pad:
                    first, last = s.maximum(first, 0), s.minimum(last, n)
                here = s.sub(last, first)
                count = here if count is None else s.mul(count, here)
            assert count is not None
            return s.div(load(added, i), cast(count, wide))

        return b.result(mean)

    return lower


def _adaptive(rank: int, greatest: bool) -> Lowering:
    """Adaptive pooling: window o of n is floor(o * N / n) to ceil((o + 1) * N / n)."""

    def lower(b: Builder, x: Tensor, output_size: Sizes) -> Tensor | tuple[Tensor, Tensor]:
        space = x.shape[-rank:]
        lead = len(x.shape) - rank
        out = b.shape[-rank:]
        widest = [_longest(n, m) for n, m in zip(space, out, strict=True)]
        wide = x.dtype.compute
        even = all(map(_divides, out, space))

        def ends(e: Expr, n: int, m: int) -> tuple[Expr, Expr]:
            if _divides(m, n):
                first = s.mul(e, n // m)
                return first, s.add(first, n // m)
            last = s.floordiv(s.add(s.mul(s.add(e, 1), n), m - 1), m)
            return s.floordiv(s.mul(e, n), m), last

        def body(*axes: Expr) -> Expr:
            i, r = axes[: len(b.shape)], axes[len(b.shape) :]
            index = list(i[:lead])
            tests: list[Expr] = []
            for e, k, n, m in zip(i[lead:], r, space, out, strict=True):
                first, last = ends(e, n, m)
                at = s.add(first, k)
                if not _divides(m, n):
                    tests.append(s.lt(at, last))
                index.append(at)
            outside = const(identity("max", x.dtype) if greatest else 0, wide)
            return s.select(s.both(*tests), raised(x, index), outside)

        if greatest:
            if len(b.results) > 1:
                values = b.result(body, reduce=widest, combiner="max", index=0)
                return values, _adaptive_positions(b, body, widest, space, out, ends)
            return b.result(body, reduce=widest, combiner="max")
        added = b.emit(b.shape, wide, body, reduce=widest, combiner="sum", part="sum")

        def mean(*i: Expr) -> Expr:
            if even:
                return s.div(load(added, i), math.prod(widest))
            v: Expr = load(added, i)
            for e, n, m in zip(i[lead:], space, out, strict=True):
                first, last = ends(e, n, m)
                v = s.div(v, cast(s.sub(last, first), wide))
            return v

        return b.result(mean)

    return lower


def _divides(m: int, n: int) -> bool:
    """Whether `m` windows divide `n`, for all values of a dynamic size."""
    left = n % m
    return not isinstance(left, Symbolic) and left == 0


def _longest(n: int, m: int) -> int:
    """The length of the longest of `m` windows over `n`; for a dynamic size an upper bound, as windows may begin and end within an element."""
    if _divides(m, n):
        return n // m
    if isinstance(n, Symbolic):
        return n // m + 2
    return max(-(-(o + 1) * n // m) - o * n // m for o in range(m))


def _adaptive_positions(
    b: Builder,
    body: Callable[..., Expr],
    widest: Sequence[int],
    space: Sequence[int],
    out: Sequence[int],
    ends: Callable[[Expr, int, int], tuple[Expr, Expr]],
) -> Tensor:
    """The positions of the maxima, row-major in the plane."""
    first = b.emit(b.shape, DType.I64, body, reduce=widest, combiner="argmax", part="first")
    lead = len(b.shape) - len(space)

    def position(*i: Expr) -> Expr:
        k: Expr = load(first, i)
        inside: list[Expr] = []
        for extent in reversed(widest):
            inside.append(s.mod(k, extent))
            k = s.floordiv(k, extent)
        flat: Expr | None = None
        for e, r, n, m in zip(i[lead:], inside[::-1], space, out, strict=True):
            at = s.add(ends(e, n, m)[0], r)
            flat = at if flat is None else s.add(s.mul(flat, n), at)
        assert flat is not None
        return flat

    return b.result(position, index=1)


def im2col(
    b: Builder,
    x: Tensor,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Tensor:
    """`torch.nn.Unfold`: [batch, channels * kernel, windows], or without the batch."""
    kernel, spread = each(kernel_size, 2), each(dilation, 2)
    around, step = each(padding, 2), each(stride, 2)
    if any(around):
        x = padded(
            b, x, [*[(0, 0)] * (len(x.shape) - 2), *((p, p) for p in around)], 0, part="padded"
        )
    columns = (x.shape[-1] - spread[1] * (kernel[1] - 1) - 1) // step[1] + 1

    def body(*i: Expr) -> Expr:
        *batch, row, window = i
        c, k = s.floordiv(row, kernel[0] * kernel[1]), s.mod(row, kernel[0] * kernel[1])
        inside = [s.floordiv(k, kernel[1]), s.mod(k, kernel[1])]
        place = [s.floordiv(window, columns), s.mod(window, columns)]
        return load(x, _windows([*batch, c, *place], inside, step, spread))

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {
    **{f"aten.max_pool{n}d.default": _max_pool(n, with_indices=False) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices": _max_pool(n, with_indices=True) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices_backward": _max_pool_backward(n) for n in (2, 3)},
    **{f"aten.avg_pool{n}d": _avg_pool(n) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d": _adaptive(n, greatest=False) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d": _adaptive(n, greatest=False) for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d": _adaptive(n, greatest=True) for n in (1, 2, 3)},
    "aten.im2col": im2col,
}
