"""Recognises products that read windows (convolutions of every kind) by their access pattern."""

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.contraction import uncast
from monotile.analysis.masked import masked
from monotile.ir.expr import Axis, Binary, Expr, Load, axes_of, loads
from monotile.ir.program import Compute, Program, statements


class Window(msgspec.Struct, frozen=True):
    """A product that reads windows of an image. image: the Load of the image. channel: its channel dimension, indexed by the
    axis `along`, which is summed over or, in a depthwise convolution, not. kernel: the other operand, if it is a Load, masked or not.
    depth: the dimension of the kernel that `along` indexes. depthwise: `along` is not summed over."""

    image: Load
    channel: int
    along: Axis
    kernel: Load | None
    depth: int
    depthwise: bool

    @property
    def in_groups(self) -> bool:
        """Whether a result's channel says which of the image's are summed."""
        return any(a != self.along for a in axes_of(self.image.index[self.channel]))


def windows_of(program: Program) -> dict[str, Window]:
    """The Windows by the name of the product."""
    found: dict[str, Window] = {}
    for s in statements(program.body):
        if isinstance(s, Compute) and (window := _window_of(s)) is not None:
            found[s.out.name] = window
    return found


def _window_of(c: Compute) -> Window | None:
    match c.body:
        case Binary("mul", a, b) if c.combiner == "sum":
            sides = uncast(a), uncast(b)
        case _:
            return None
    for side, other in (sides, sides[::-1]):
        x = masked(side)
        if x is not None and (window := _window(c, x.load, other)) is not None:
            return window
    return None


def _window(c: Compute, image: Load, other: Expr) -> Window | None:
    """A dimension of a window is indexed by a reduce axis and by an axis that the other operand does not use."""
    reduce, own = {*c.reduce}, axes_of(image) - axes_of(other)
    inside = [axes_of(i) & reduce for i in image.index if axes_of(i) & reduce and axes_of(i) & own]
    if not inside or any(loads(i) for i in image.index):
        return None
    found = masked(other)
    kernel = None if found is None else found.load
    for along in (*c.reduce, *c.axes):
        at = [d for d, i in enumerate(image.index) if along in axes_of(i)]
        if len(at) != 1 or along.extent == 1 or axes_of(image.index[at[0]]) & own:
            continue
        if not any(a - {along} for a in inside):
            continue
        depth = next((d for d, i in enumerate(kernel.index) if i == along), -1) if kernel else -1
        beside = affine(image.index[at[0]]).terms == ((along, 1),)
        if along not in reduce and (depth < 0 or not beside):
            continue
        return Window(
            image, at[0], along, kernel if depth >= 0 else None, depth, along not in reduce
        )
    return None


class Sliding(msgspec.Struct, frozen=True):
    """How windows of neighbouring outputs along the last axis but one overlap. reduce: position of the reduce axis along them.
    step, dilation: distance between windows, and between terms."""

    reduce: int
    step: int
    dilation: int

    def reads(self, windows: int, terms: int) -> int:
        """About the number of places that so many windows read together."""
        apart = -(-self.step // self.dilation)
        return min(windows * terms, (windows - 1) * apart + terms)


def sliding(c: Compute) -> Sliding | None:
    """The Sliding of the first Load with this access pattern."""
    if len(c.axes) < 2:
        return None
    for x in loads(c.body):
        for i in x.index:
            where = affine(i)
            step = abs(where.coefficient(c.axes[-2]))
            for q, r in enumerate(c.reduce):
                if step and (dilation := abs(where.coefficient(r))):
                    return Sliding(q, step, dilation)
    return None
