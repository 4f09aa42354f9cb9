"""What a graph takes for granted of its data: see `marks.known`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from monotile.frontends.builder import Builder, Unsupported, load
from monotile.frontends.torch.branches.marks import ASSERTED
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, idx


def known(b: Builder, x: Tensor, values: Sequence[int | float], text: str) -> None:
    """A look-up in one element, whose place is that one only where `x` is as it is taken to be: each call checks it as any index from data."""
    if b.granted is None and text == ASSERTED:  # on a side of an `if`
        return
    if b.granted is None:
        raise Unsupported("a number is asked inside control flow")
    wanted = b.constant(np.asarray(values, np.float64 if x.dtype.is_float else np.int64))
    only = b.constant(np.zeros(1, np.int32), text)  # its name is in the message

    def body(k: Expr) -> Expr:
        same = s.eq(cast(load(x, [k]), wanted.dtype), load(wanted, [k]))
        return load(only, [s.select(same, idx(0), idx(1))])

    b.granted.append(b.emit(x.shape, DType.I32, body, part="checked"))


LOWERINGS: Mapping[str, Callable[..., Any]] = {"monotile.known": known}
