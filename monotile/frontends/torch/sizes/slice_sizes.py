"""Sizes of slices whose ends depend on symbolic sizes.

If PyTorch cannot prove that an end is within the tensor, the slice's size becomes a new symbol, like a data-dependent one.
"""

import sys
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import Max, Min

from monotile.frontends.torch.sizes.size import Shapes, bounds, expr_of


def learn_slice(shapes: Shapes, node: fx.Node, args: Sequence[Any]) -> None:
    """Registers in `shapes` the size of `node`, a slice with the arguments `args`, if it is a new symbol. A data-dependent size stays a symbol."""
    _, dim, start, end, step = (*args, *(0, None, None, 1)[len(args) - 1 :])
    source: Any = node.args[0]
    size, whole = (x.meta["val"].shape[dim] for x in (node, source))
    if not isinstance(size, torch.SymInt) or not shapes.is_new(size) or shapes.is_new(whole):
        return
    extent = shapes.size(whole)
    first, last = (_within(x, extent) for x in (start or 0, sys.maxsize if end is None else end))
    if first is None or last is None or step != 1:
        return
    shapes.equate(size, Max(sympy.Integer(0), last - first))


def _within(place: Any, extent: int) -> Any:
    """The position of a slice's end `place`, clamped to the tensor; None if unknown."""
    if not isinstance(place, int):
        return None
    if place == sys.maxsize:
        return expr_of(extent)
    low, high = bounds(place)
    if low >= 0:
        return Min(expr_of(place), expr_of(extent))
    return Max(sympy.Integer(0), expr_of(extent + place)) if high < 0 else None
