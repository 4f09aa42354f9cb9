"""The index arithmetic of a reshape."""

from collections.abc import Iterator, Sequence

from monotile.frontends.torch.lower.scalar import floordiv, mod
from monotile.ir.expr import Expr, add, idx, mul


def groups(src: Sequence[int], dst: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The shortest runs of dimensions of `src` and `dst` with equally many elements.

    Dimensions of extent 1 are at a run's end or form a run of their own.
    """
    i = j = 0
    while i < len(src) or j < len(dst):
        begin = i, j
        a = b = 1
        if i < len(src):
            a, i = src[i], i + 1
        if j < len(dst):
            b, j = dst[j], j + 1
        while a != b and (i < len(src) or j < len(dst)):  # the whole is equal, known or not
            if j == len(dst) or (i < len(src) and int(a) < int(b)):  # of sizes, their most
                a, i = a * src[i], i + 1
            else:
                b, j = b * dst[j], j + 1
        yield range(begin[0], i), range(begin[1], j)


def reshape_index(src: Sequence[int], dst: Sequence[int], at: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index into a tensor of shape `src` of the element at `at` of its reshape to `dst`.

    Splits and merges of dimensions keep to the dimensions they concern; extents are not 0.
    """
    index: list[Expr] = [idx(0)] * len(src)
    wide_src = [k for k, n in enumerate(src) if n != 1]
    wide_dst = [k for k, n in enumerate(dst) if n != 1]
    for s, d in groups([src[k] for k in wide_src], [dst[k] for k in wide_dst]):
        from_dims, to_dims = [wide_src[k] for k in s], [wide_dst[k] for k in d]
        position: Expr = idx(0)
        step = 1
        for k in reversed(to_dims):
            position = add(mul(at[k], idx(step)), position)
            step *= dst[k]
        step = 1
        for k in reversed(from_dims):
            inner = floordiv(position, idx(step))
            outermost = k == from_dims[0]
            index[k] = inner if outermost else mod(inner, idx(src[k]))
            step *= src[k]
    return tuple(index)
