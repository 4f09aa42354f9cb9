"""Dimensions in place of one, in the order of memory: the last one walks neighbours."""

import math
from collections.abc import Iterable, Sequence

from monotile.ir.expr import Expr, add, binary, idx, mul


def apart(place: Expr, extents: Sequence[int]) -> list[Expr]:
    """The place in each of the dimensions of these extents."""
    found: list[Expr] = []
    for k, extent in enumerate(extents):
        here = binary("floordiv", place, idx(math.prod(extents[k + 1 :])))
        found.append(binary("mod", here, idx(extent)) if k else here)
    return found


def joined(places: Iterable[Expr], extents: Iterable[int]) -> Expr:
    """The place in the one dimension."""
    whole: Expr = idx(0)
    for place, extent in zip(places, extents, strict=True):
        whole = add(mul(whole, idx(extent)), place)
    return whole
