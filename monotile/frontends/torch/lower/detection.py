"""Operators of torchvision for detection: suppression of overlapping boxes (`nms`), crops of feature maps (`roi_align`) and convolutions at learned
positions (`deform_conv2d`; Zhu et al., 2018)."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.data_dependent import places
from monotile.frontends.torch.lower.grid_sample import sampled
from monotile.frontends.torch.lower.sorting import order_of
from monotile.frontends.torch.sizes.size import Size
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Tensor, cast, const, idx
from monotile.ir.program import Carry, Loop

Lowering = Callable[..., Any]


def nms(b: Builder, boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The positions of the boxes that no box of a greater score, itself among them, overlaps by more than a share of their union; by descending score.

    boxes: [n, 4], left, top, right and bottom. Whether a box is kept depends on those before it. All are decided at once, again and again, until
    nothing changes: after k steps the first k are right, and most chains of overlapping boxes are short.
    """
    n = boxes.shape[0]
    order = order_of(b, scores, 0, True, (n,))
    wide = boxes.dtype.compute
    box = b.emit((n, 4), wide, lambda k, c: raised(boxes, [load(order, [k]), c]), part="box")

    def side(k: Expr, first: int) -> Expr:
        return s.sub(load(box, [k, idx(first + 2)]), load(box, [k, idx(first)]))

    area = b.emit((n,), wide, lambda k: s.mul(side(k, 0), side(k, 1)), part="area")
    limit = const(_rounded_down(iou_threshold, wide), wide)

    def overlap(i: Expr, j: Expr) -> Expr:
        def length(first: int) -> Expr:
            ends = s.minimum(*(load(box, [k, idx(first + 2)]) for k in (i, j)))
            return s.maximum(s.sub(ends, s.maximum(*(load(box, [k, idx(first)]) for k in (i, j)))), 0)  # fmt: skip

        shared = s.mul(length(0), length(1))
        union = s.sub(s.add(load(area, [i]), load(area, [j])), shared)
        return s.both(s.lt(i, j), s.gt(s.div(shared, union), limit))

    over = b.emit((n, n), DType.BOOL, overlap, part="over")
    kept = _settled(b, over, n)
    found = places(b, kept, b.shape[0])
    return b.result(lambda k: load(order, [s.minimum(load(found, [k]), int(n) - 1)]))


def _rounded_down(x: float, dtype: DType) -> float:
    """The greatest number of a type that is not above `x`: PyTorch compares in double precision."""
    if dtype is not DType.F32:
        return x
    found = np.float32(x)
    return float(found if found <= x else np.nextafter(found, np.float32(-math.inf)))


def _settled(b: Builder, over: Tensor, n: int) -> Tensor:
    """bool [n]: which are kept. over[i, j]: whether j is dropped if i is kept; i < j."""
    first = b.emit((n,), DType.BOOL, lambda _: const(True, DType.BOOL), part="all")
    go = b.emit((), DType.BOOL, lambda: const(True, DType.BOOL), part="go")
    axis = Axis(b.names.unique(f"{b.node}_step"), int(n))
    inner = b.nested(axis)
    before, going = b.tensor((n,), DType.BOOL, "before"), b.tensor((), DType.BOOL, "going")
    dropped = inner.emit(
        (n,), DType.BOOL, lambda j, i: s.both(load(before, [i]), load(over, [i, j])),
        reduce=(n,), combiner="any", part="dropped",
    )  # fmt: skip
    after = inner.emit((n,), DType.BOOL, lambda j: s.negation(load(dropped, [j])), part="after")
    again = inner.emit(
        (), DType.BOOL, lambda j: s.ne(load(after, [j]), load(before, [j])),
        reduce=(n,), combiner="any", part="again",
    )  # fmt: skip
    out = b.tensor((n,), DType.BOOL, "kept")
    carried = (Carry(first, before, after, out), Carry(go, going, again, b.tensor((), DType.BOOL, "gone")))  # fmt: skip
    b.append(Loop(axis, carried, (), tuple(inner.statements), predicate=again, origin=b.origin))
    return out


def roi_align(
    b: Builder, x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int, aligned: bool
) -> Tensor:  # fmt: skip
    """Each box's part of x[n, c], averaged in bins, from samples that are interpolated linearly.

    rois: [k, 5], the number of an image, left, top, right and bottom. sampling_ratio: samples in a bin along each dimension; if it is not positive,
    one per element that the bin covers, of which there are at most as many as `x` is large.
    """
    images, _, *space = x.shape
    if 0 in x.shape:
        raise Unsupported("nothing to sample")
    wide, pooled = x.dtype.compute, (pooled_height, pooled_width)
    grid = [sampling_ratio if sampling_ratio > 0 else int(n) for n in space]
    rows = (rois.shape[0],)

    def corner(k: Expr, c: int) -> Expr:
        at = s.mul(cast(raised(rois, [k, idx(c)]), wide), spatial_scale)
        return s.sub(at, 0.5) if aligned else at

    def extent(k: Expr, d: int) -> Expr:
        found = s.sub(corner(k, 4 - d), corner(k, 2 - d))
        return found if aligned else s.maximum(found, 1.0)

    counts = [
        b.emit(rows, wide, lambda k, d=d: s.call("ceil", s.div(extent(k, d), pooled[d])), part=f"count{d}")
        for d in (0, 1)
    ] if sampling_ratio <= 0 else []  # fmt: skip

    def sample(d: int, k: Expr, i: Expr, r: Expr) -> Expr:
        """The position along dimension `d` of sample r of bin i."""
        size = s.div(extent(k, d), pooled[d])
        step = s.div(s.mul(s.add(cast(r, wide), 0.5), size), load(counts[d], [k]) if counts else float(grid[d]))  # fmt: skip
        return s.add(s.add(corner(k, 2 - d), s.mul(cast(i, wide), size)), step)

    at = [
        b.emit((*rows, pooled[d], grid[d]), wide, lambda k, i, r, d=d: sample(d, k, i, r), part=f"at{d}")
        for d in (0, 1)
    ]  # fmt: skip

    def image(k: Expr) -> Expr:
        return s.maximum(s.minimum(cast(raised(rois, [k, idx(0)]), DType.I64), images - 1), 0)

    def value(k: Expr, c: Expr, i: Expr, j: Expr, r: Expr, q: Expr) -> Expr:
        where = [load(at[0], [k, i, r]), load(at[1], [k, j, q])]
        found = _clamped_sample(x, [image(k), c], where)
        inside = [s.lt(cast(e, wide), load(n, [k])) for e, n in zip((r, q), counts, strict=False)]
        return s.masked(inside, found, const(0.0, wide))

    total = b.emit(b.shape, wide, value, reduce=grid, combiner="sum", part="total")

    def mean(k: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        many = s.mul(*(load(n, [k]) for n in counts)) if counts else float(math.prod(grid))
        divisor = s.maximum(many, 1.0) if counts else many
        return cast(s.div(load(total, [k, c, i, j]), divisor), x.dtype)

    return b.result(mean)


def _clamped_sample(x: Tensor, lead: Sequence[Expr], at: Sequence[Expr]) -> Expr:
    """Linear interpolation of x[lead] at a position: within an element of a border that is the border's value, and 0 farther away."""
    sides: list[list[tuple[Expr, Expr]]] = []
    tests: list[Expr] = []
    for e, size in zip(at, x.shape[2:], strict=True):
        tests += [s.ge(e, -1.0), s.le(e, float(size))]
        held = s.minimum(s.select(s.gt(e, 0.0), e, 0.0), float(size - 1))
        low = s.call("floor", held)
        share = s.sub(held, low)
        first = cast(low, DType.I64)
        sides.append([(first, s.sub(1.0, share)), (s.minimum(s.add(first, 1), size - 1), share)])
    terms = [s.mul(raised(x, [*lead, y, z]), s.mul(v, w)) for y, v in sides[0] for z, w in sides[1]]
    found = terms[0]
    for term in terms[1:]:
        found = s.add(found, term)
    return s.masked(tests, found, const(0.0, found.dtype))


def deform_conv2d(
    b: Builder, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *geometry: int
) -> Tensor:  # fmt: skip
    """A convolution whose taps read `x` beside their places, by offset[n, 2 * tap, ...] down and offset[n, 2 * tap + 1, ...] to the right, times
    mask[n, tap, ...]. The channels of a group of offsets share them."""
    stride, padding, dilation = geometry[0:2], geometry[2:4], geometry[4:6]
    groups, offset_groups, use_mask = geometry[6:9]
    n, channels = x.shape[:2]
    out, per_group, *kernel = weight.shape
    space = b.shape[2:]
    if 0 in x.shape or isinstance(channels, Size):
        raise Unsupported("nothing to sample")
    wide = x.dtype.compute

    def tap(c: Expr, i: Expr, j: Expr) -> Expr:
        group = s.floordiv(c, channels // offset_groups)
        return s.add(s.mul(s.add(s.mul(group, kernel[0]), i), kernel[1]), j)

    def place(d: int, m: Expr, g: Expr, taps: Sequence[Expr], to: Sequence[Expr]) -> Expr:
        number = s.add(s.mul(tap(s.mul(g, channels // offset_groups), *taps), 2), d)
        usual = s.sub(s.add(s.mul(to[d], stride[d]), s.mul(taps[d], dilation[d])), padding[d])
        return s.add(cast(usual, wide), raised(offset, [m, number, *to]))

    at = [
        b.emit((n, offset_groups, *kernel, *space), wide,
               lambda m, g, i, j, y, z, d=d: place(d, m, g, (i, j), (y, z)), part=f"at{d}")
        for d in (0, 1)
    ]  # fmt: skip

    def column(m: Expr, c: Expr, i: Expr, j: Expr, y: Expr, z: Expr) -> Expr:
        where = [m, s.floordiv(c, channels // offset_groups), i, j, y, z]
        found = sampled(x, [m, c], [load(t, where) for t in at])
        if use_mask:
            found = s.mul(found, raised(mask, [m, tap(c, i, j), y, z]))
        return cast(found, x.dtype)

    columns = b.emit((n, channels, *kernel, *space), x.dtype, column, part="columns")
    each = out // groups

    def term(m: Expr, g: Expr, o: Expr, y: Expr, z: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        channel = s.add(s.mul(g, per_group), c)
        return s.mul(raised(columns, [m, channel, i, j, y, z]), raised(weight, [s.add(s.mul(g, each), o), c, i, j]))  # fmt: skip

    total = b.emit(
        (n, groups, each, *space), wide, term, reduce=(per_group, *kernel), combiner="sum", part="total"
    )  # fmt: skip

    def body(m: Expr, o: Expr, y: Expr, z: Expr) -> Expr:
        found = load(total, [m, s.floordiv(o, each), s.mod(o, each), y, z])
        return cast(s.add(found, raised(bias, [o])), x.dtype)

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {
    "torchvision.nms": nms,
    "torchvision.roi_align": roi_align,
    "torchvision.deform_conv2d": deform_conv2d,
}
