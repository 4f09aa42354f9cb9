"""Guards on data (see `markers.guard`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from monotile.frontends.builder import Builder, Unsupported, load
from monotile.frontends.torch.branches.markers import ASSERTED
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, idx


def guard(b: Builder, x: Tensor, values: Sequence[int | float], text: str) -> None:
    """Checks in each call that `x` has these values: a look-up in a tensor of one element, whose index is in range only then."""
    if b.granted is None and text == ASSERTED:  # in a branch
        return
    if b.granted is None:
        raise Unsupported("a number is read inside control flow")
    wanted = b.constant(np.asarray(values, np.float64 if x.dtype.is_float else np.int64))
    only = b.constant(np.zeros(1, np.int32), text)  # its name is in the message

    def body(k: Expr) -> Expr:
        same = s.eq(cast(load(x, [k]), wanted.dtype), load(wanted, [k]))
        return load(only, [s.select(same, idx(0), idx(1))])

    b.granted.append(b.emit(x.shape, DType.I32, body, part="checked"))


LOWERINGS: Mapping[str, Callable[..., Any]] = {"monotile.guard": guard}
