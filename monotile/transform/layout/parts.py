"""Splits an index of one dimension into several, and joins it, in row-major order."""

import math
from collections.abc import Iterable, Sequence

from monotile.ir.expr import Expr, add, binary, idx, mul


def apart(place: Expr, extents: Sequence[int]) -> list[Expr]:
    """The indices in the dimensions of these extents."""
    found: list[Expr] = []
    for k, extent in enumerate(extents):
        here = binary("floordiv", place, idx(math.prod(extents[k + 1 :])))
        found.append(binary("mod", here, idx(extent)) if k else here)
    return found


def joined(places: Iterable[Expr], extents: Iterable[int]) -> Expr:
    """The index in the one dimension."""
    whole: Expr = idx(0)
    for place, extent in zip(places, extents, strict=True):
        whole = add(mul(whole, idx(extent)), place)
    return whole
