"""Address computation: from a tensor's place to an element's base pointer, origin and strides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monotile.analysis.affine import Affine, affine, joined
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Tensor, idx
from monotile.plan.places import (
    Final,
    Place,
    Pointer,
    Register,
    Replica,
    Rotate,
    Shared,
    Slice,
    Strip,
    Value,
    Workspace,
)

WIDEST = 16  # bytes of the widest access


def loop_variable(axis: str) -> str:
    """The variable that holds the iteration of the Repeat over `axis`."""
    return f"loop_{axis}"


def coordinates(grid: Sequence[int]) -> tuple[Axis, ...]:
    """The task's coordinates along the tile axes of its stage: variables c0, c1, ..."""
    return tuple(Axis(f"c{k}", extent) for k, extent in enumerate(grid))


@dataclass(frozen=True, slots=True)
class Layout:
    """origin: per dimension, the index stored at the base. strides: elements from one index to the next."""

    origin: tuple[Affine, ...]
    strides: tuple[int, ...]

    def offset(self, index: Sequence[Expr]) -> Affine:
        """Elements from the base to `index`."""
        total = Affine(())
        for i, first, stride in zip(index, self.origin, self.strides, strict=True):
            total = total + (affine(i) + first.scale(-1)).scale(stride)
        return joined(total)


def layout(place: Place, shape: tuple[int, ...], task: Sequence[Axis]) -> Layout:
    """The layout of a tensor's elements (without a weight's table dimensions) relative to the base of `place`.

    task: the coordinates of the task.
    """
    match place:
        case Shared(_, box, pitch):
            strides = [1] * len(box)
            for d in range(len(box) - 2, -1, -1):
                strides[d] = pitch if d == len(box) - 2 else strides[d + 1] * box[d + 1].extent
            origin = tuple(
                Affine(()) if b.stage is None else affine(task[b.stage]).scale(b.tile) for b in box
            )
            return Layout(origin, tuple(strides))
        case Pointer() | Workspace() | Replica():
            return _dense(shape)
        case Strip(_, _, _, pitch):
            return _dense((*shape[:-1], pitch))
        case Slice(of) | Final(of):
            return layout(of, shape, task)
        case Rotate(_, _, _, (a, b), first, last):
            found = {layout(p, shape, task) for p in (a, b, first, last) if p is not None}
            if len(found) != 1:
                raise InternalError(
                    f"a carried value changes its layout from place to place: {place}"
                )
            return found.pop()
        case Register():
            raise InternalError("a value in a register has no address")


def _dense(shape: tuple[int, ...]) -> Layout:
    return Layout((Affine(()),) * len(shape), Tensor("", shape, DType.F32).strides)


def place_axes(place: Place) -> frozenset[str]:
    """Variables that the base pointer of `place` depends on."""
    match place:
        case Pointer() | Workspace() | Strip() | Register():
            return frozenset()
        case Shared() | Replica():
            return frozenset({"scratch"})
        case Slice(of, axis):
            return place_axes(of) | {loop_variable(axis)}
        case Rotate(axis, _, _, (a, b), first, last):
            inner = [place_axes(p) for p in (a, b, first, last) if p is not None]
            return frozenset({loop_variable(axis)}).union(*inner)
        case Final(of):
            return place_axes(of)


def base(place: Place, part: str) -> str:
    """Text of the base pointer as `char*`. `part`: which entry of a weight's table, "" for the first."""
    match place:
        case Value(slot):
            return f"(char*)&MT_POINTER({slot})"
        case Pointer(slot):
            entry = f"{slot} + {part}" if part and slot else part or str(slot)
            return f"(char*)MT_POINTER({entry})"
        case Workspace(offset):
            return f"workspace + {offset}" if offset else "workspace"
        case Strip(offset, first, _, _, size):
            return f"workspace + {offset + first * size}"
        case Shared(offset) | Replica(offset):
            return f"scratch + {offset}" if offset else "scratch"
        case Slice(of, axis, stride):
            return f"{base(of, part)} + {loop_variable(axis)} * (size_t){stride}"
        case Rotate(axis, extent, phase, (a, b), first, last):
            loop = loop_variable(axis)
            iteration = f"({loop} + {phase})" if phase else loop
            text = f"({iteration} & 1 ? {base(b, part)} : {base(a, part)})"
            if last is not None:
                text = f"({loop} == {extent - 1} ? {base(last, part)} : {text})"
            if first is not None:
                text = f"({loop} == 0 ? {base(first, part)} : {text})"
            return text
        case Final(of):  # the loop variable keeps its last value
            return base(of, part)
        case Register():
            raise InternalError("a value in a register has no address")


def readable(places: tuple[Place, ...], *, own: bool) -> Place:
    """The place that a tensor is read from; `own`: in the stage that computes it."""
    for place in places:
        if not isinstance(place, Register) and (own or not isinstance(place, Shared)):
            return place
    raise InternalError("a tensor is read where it was never stored")


def stored(places: tuple[Place, ...]) -> tuple[Place, ...]:
    """The places that a tensor is written to."""
    return tuple(p for p in places if not isinstance(p, Register))


def part_number(index: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """The row-major position in a weight's table."""
    total = Affine(())
    for i, extent in zip(index, extents, strict=True):
        total = total.scale(extent) + affine(i)
    return total.expr if total.terms else idx(total.constant)


def alignment(place: Place) -> int:
    """A number of bytes that divides the base of `place`, up to the widest vector."""
    match place:
        case Pointer() | Register():
            return WIDEST
        case Workspace(offset) | Shared(offset) | Replica(offset):
            return math.gcd(offset, WIDEST)
        case Strip(offset, first, _, _, size):
            return math.gcd(offset + first * size, WIDEST)
        case Slice(of, _, stride):
            return math.gcd(alignment(of), stride)
        case Rotate(_, _, _, places, first, last):
            every = (*places, *(p for p in (first, last) if p is not None))
            return math.gcd(*(alignment(p) for p in every))
        case Final(of):
            return alignment(of)


def others(offset: Affine, lane: Axis) -> Affine:
    """`offset` without the lane's own term."""
    return Affine(tuple(t for t in offset.terms if t[0] != lane), offset.constant)


def is_pack(offset: Affine, lane: Axis, size: int, place: Place | None) -> bool:
    """Whether lanes' elements, each of `size` bytes, are contiguous and aligned in `place`, or in any place for None.

    offset: of a lane's element; no other term of it differs from lane to lane.
    """
    rest, group = others(offset, lane), min(lane.extent, WIDEST // size)
    steps = (rest.constant, *(c for _, c in rest.terms))
    if place is not None and (alignment(place) % (group * size) or any(c % group for c in steps)):
        return False
    return offset.coefficient(lane) == 1
