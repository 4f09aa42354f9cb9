"""Recognises products that read windows (convolutions of every kind) by their access pattern."""

import functools

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.contraction import uncast
from monotile.analysis.masked import masked
from monotile.ir.expr import Axis, Binary, Const, Expr, Load, Unary, axes_of, loads
from monotile.ir.program import Compute, Program, statements

FEW_WINDOWS = 8  # windows by which their overlap is measured


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
        """Whether a result's channel determines which of the image's channels are summed."""
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
    """A dimension of a window is indexed by a reduce axis and by an axis along which it slides, which the other operand does not use."""
    reduce = {*c.reduce}
    own = {a for a in axes_of(image) - axes_of(other) if a.extent > 1}
    moved = [axes_of(i) for i in image.index if axes_of(i) & reduce and axes_of(i) & own]
    inside, slid = [axes & reduce for axes in moved], {a for axes in moved for a in axes & own}
    if not inside or any(loads(i) for i in image.index):
        return None
    found = masked(other)
    kernel = None if found is None else found.load
    for along in (*c.reduce, *reversed(c.axes)):  # of a batch and its channels, the channels
        at = [d for d, i in enumerate(image.index) if along in axes_of(i)]
        if len(at) != 1 or along.extent == 1 or axes_of(image.index[at[0]]) & slid:
            continue
        if not any(a - {along} for a in inside):
            continue
        depth = next((d for d, i in enumerate(kernel.index) if i == along), -1) if kernel else -1
        where = affine(image.index[at[0]])
        beside = where.coefficient(along) == 1 and not axes_of(where.expr) & reduce
        if along not in reduce and (depth < 0 or not beside or not _overlap(c, image)):
            continue
        return Window(
            image, at[0], along, kernel if depth >= 0 else None, depth, along not in reduce
        )
    return None


def _overlap(c: Compute, image: Load) -> bool:
    """Whether neighbouring windows overlap; rows of a matrix viewed with two dimensions as one do not."""
    axes = [a for a in c.axes if a.extent > 1]
    for where in (affine(_unfolded(i)) for i in image.index):
        steps = [abs(step) for a in axes if (step := where.coefficient(a))]
        reach = (abs(where.coefficient(r)) * (r.extent - 1) for r in c.reduce)
        if steps and min(steps) <= sum(reach):
            return True
    return False


def _unfolded(i: Expr) -> Expr:
    """A position before it is folded back into the image: reflected at its ends, or the nearest, or from the other end."""
    match i:
        case Unary("abs", x) | Binary("min" | "max" | "mod", x, Const()):
            return _unfolded(x)
        case Binary("add" | "sub" as op, a, b):
            return Binary(op, _unfolded(a), _unfolded(b))
        case _:
            return i


class Sliding(msgspec.Struct, frozen=True):
    """How windows of neighbouring outputs along the last axis but one overlap. reduce: position of the reduce axis along them.
    step, dilation: distance between windows, and between terms."""

    reduce: int
    step: int
    dilation: int

    def reads(self, windows: int, terms: int) -> int:
        """The number of positions that so many windows read together."""
        first = {self.step * n for n in range(windows)}
        return len({at + self.dilation * k for at in first for k in range(terms)})


@functools.lru_cache(maxsize=4096)
def sliding(c: Compute) -> Sliding | None:
    """How windows overlap in the first Load whose index depends on both an output axis and a reduction axis; along the reduction axis by
    which they share most."""
    if len(c.axes) < 2:
        return None
    for x in loads(c.body):
        for i in x.index:
            where = affine(i)
            step = abs(where.coefficient(c.axes[-2]))
            found = [
                Sliding(q, step, dilation)
                for q, r in enumerate(c.reduce)
                if step and (dilation := abs(where.coefficient(r)))
            ]
            if found:
                few = min(FEW_WINDOWS, c.axes[-2].extent)
                return min(found, key=lambda s: _share(s, few, c.reduce[s.reduce].extent))
    return None


def _share(s: Sliding, windows: int, terms: int) -> float:
    """For so many windows, the positions that they read together as a fraction of those that they read one by one."""
    return s.reads(windows, terms) / (windows * terms)
