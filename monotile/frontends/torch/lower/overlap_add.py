"""Overlap-add of windows, the inverse of `unfold` except that overlapping elements are summed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, broadcast, raised, wrap
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.expr import Expr, Tensor, const, idx

Lowering = Callable[..., Any]


def unfold_backward(
    b: Builder, windows: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> Tensor:
    """The sum of all windows, of `size` elements in the last dimension, with window w at w * step; other dimensions are broadcast."""
    if not b.shape:
        return b.result(lambda: raised(windows, [idx(0)] * len(windows.shape)))
    d = wrap(dim, len(b.shape))
    count, wide = windows.shape[d], b.dtype.compute

    def term(*axes: Expr) -> Expr:
        *i, r = axes
        window = s.sub(s.floordiv(i[d], step), r)
        place = s.add(s.mod(i[d], step), s.mul(r, step))
        inside = s.both(s.ge(window, 0), s.lt(window, count), s.lt(place, size))
        at = broadcast(windows.shape, [*i[:d], window, *i[d + 1 :], place])
        return s.select(inside, raised(windows, at), const(0, wide))

    return b.result(term, reduce=(-(-size // step),), combiner="sum")


LOWERINGS: Mapping[str, Lowering] = {"aten.unfold_backward": unfold_backward}
