"""Pads few channels to a whole copy: the three channels of an image at a network's input (CUDA).

A convolution over three channels reads single elements in any layout. With a fourth channel of zeros in the image and the
weight, and channels last, it reads runs of eight bytes. Both are copied in this form first, in one pass.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.windows import Window, windows_of
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    SizeTensor,
    Tensor,
    map_loads,
    substitute,
    walk,
)
from monotile.ir.program import Compute, Program, Statement
from monotile.targets.target import Target
from monotile.transform.layout.padding import padded_copy, with_copies
from monotile.transform.names import Names
from monotile.transform.rewrite import map_program

RUN = 8  # contiguous bytes of channels from which on padding pays
MOST = 4 / 3  # tolerated increase of the work


def pad_channels(program: Program, target: Target) -> Program:
    """`program` with products that read windows of too few channels reading padded copies of image and kernel."""
    windows = windows_of(program) if target.has.wide_copies else {}
    names, made = Names(program), list[tuple[Tensor, Compute]]()

    def padded(s: Statement) -> Statement:
        w = windows.get(s.out.name) if isinstance(s, Compute) else None
        if w is None or not isinstance(s, Compute) or w.kernel is None:
            return s
        few = _padding(s, w)
        if not few:
            return s
        image = _copy(w.image.tensor, w.channel, few, names, _sizes(s, w.image))
        kernel = _copy(w.kernel.tensor, w.depth, few, names)
        copies = {w.image.tensor: image, w.kernel.tensor: kernel}
        made.extend(copies.items())
        return _reading(s, w, {t: copy.out for t, copy in copies.items()}, few)

    return with_copies(map_program(program, padded), made)


def _padding(c: Compute, w: Window) -> int:
    """The padded number of channels; 0 if it stays."""
    lanes = RUN // w.image.dtype.itemsize
    few = -(-w.along.extent // lanes) * lanes
    runs = (contiguous_run(offset(w.image), r, lanes) for r in c.reduce)
    worth = w.along.extent < few <= MOST * w.along.extent and max(runs) < lanes
    return few if worth and w.along in c.reduce and w.image.index[w.channel] == w.along else 0


def _sizes(c: Compute, x: Load) -> dict[int, Expr]:
    """The sizes that bound dimensions of `x` in the masks of `c`: memory may end there."""
    found: dict[int, Expr] = {}
    for e in walk(c.body):
        match e:
            case Binary("lt", Axis() as a, Load(SizeTensor(), ()) as size) if a in x.index:
                found[x.index.index(a)] = size
            case _:
                pass
    return found


def _copy(
    t: Tensor,
    d: int,
    few: int,
    names: Names,
    sizes: Mapping[int, Expr] = MappingProxyType({}),
) -> Compute:
    """`t` with dimension d last and zero-padded to `few`. sizes: by dimension, the lengths beyond which others are zero too."""
    order = (*(k for k in range(len(t.shape)) if k != d), d)
    return padded_copy(t, names.fresh(f"{t.name}_padded"), order, {d: few}, sizes)


def _reading(c: Compute, w: Window, copies: dict[Tensor, Tensor], few: int) -> Compute:
    """`c` summing over the padded channels of the copies."""
    more = Axis(w.along.name, few)
    at = {w.image.tensor: w.channel, w.kernel.tensor if w.kernel else None: w.depth}

    def read(x: Load) -> Expr:
        if x.tensor not in copies:
            return x
        d = at[x.tensor]
        return Load(copies[x.tensor], (*x.index[:d], *x.index[d + 1 :], x.index[d]))

    body = map_loads(substitute(c.body, {w.along.name: more}), read)
    reduce = tuple(more if a == w.along else a for a in c.reduce)
    return msgspec.structs.replace(c, body=body, reduce=reduce)
