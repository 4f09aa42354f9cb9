"""Crops tensors to the parts that are read: the one token of a layer that a classifier reads, a causal convolution without the positions
after the end.

Backward from the outputs: a Compute that computes less also reads less.
"""

from collections.abc import Iterator, Mapping

import msgspec

from monotile.analysis.uses import Uses
from monotile.ir.bounds import evaluated
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, idx, map_loads, substitute
from monotile.ir.intervals import Interval, Ranges
from monotile.ir.program import (
    Branch,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    ends_of,
    expressions,
    statements,
)
from monotile.transform.rewrite import Body, map_exprs, map_program
from monotile.transform.simplify.simplify import simplify_compute

WORTH = 16  # a dimension is cropped by at least one in so many, or to a length that is divisible as well


class Crop(msgspec.Struct, frozen=True):
    """`tensor` is the kept part of another, from `first` on."""

    tensor: Tensor
    first: tuple[int, ...]

    def index(self, old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The new index of the element at `old`."""
        return tuple(add(i, idx(-n)) if n else i for i, n in zip(old, self.first, strict=True))


def crop(program: Program) -> Program:
    """`program` with such tensors; the same object if all are read whole."""
    finder = _Finder(program)
    finder.body(program.body)
    crops = finder.crops
    return map_program(program, lambda s: _cropped(s, crops)) if crops else program


class _Finder:
    """reads: the smallest box that contains all reads of a tensor, by name."""

    def __init__(self, program: Program) -> None:
        self.crops: dict[str, Crop] = {}
        self._reads: dict[str, tuple[Interval, ...]] = {}
        computes = (s for s in statements(program.body) if isinstance(s, Compute))
        ends = {t.name for s in computes for t in ends_of(s)}
        self._whole = Uses(program).whole | ends

    def body(self, body: Body) -> None:
        """Backward, so that a tensor's readers are cropped before it."""
        for s in reversed(body):
            match s:
                case Compute():
                    self._find(s)
                    self._read(_smaller(s, self.crops.get(s.out.name)))
                case Scatter():
                    self._read(s)
                case Loop():
                    self.body(s.body)
                case Branch():
                    self.body(s.then)
                    self.body(s.otherwise)

    def _find(self, s: Compute) -> None:
        """The part of its result that is read, if that is not all."""
        t, box = s.out, self._reads.get(s.out.name)
        if t.name in self._whole or box is None:
            return
        bounded = {x.axis for x in s.live} | {at.axis for x in s.live for at in x.at}
        kept = [
            Interval(0, a.extent - 1) if a in bounded or not _worth(a.extent, part) else part
            for a, part in zip(s.axes, box, strict=True)
        ]
        shape = tuple(x.hi - x.lo + 1 for x in kept)
        if shape != t.shape:
            new = msgspec.structs.replace(t, shape=shape)
            self.crops[t.name] = Crop(new, tuple(x.lo for x in kept))

    def _read(self, s: Compute | Scatter) -> None:
        for x, index in _boxes(s):
            old = self._reads.get(x.name)
            both = zip(old, index, strict=True) if old else None
            self._reads[x.name] = tuple(a.join(b) for a, b in both) if both else index


def _boxes(s: Compute | Scatter) -> Iterator[tuple[Tensor, tuple[Interval, ...]]]:
    """The box that it reads of each tensor, once for each Load."""
    ranges = Ranges()
    for e in expressions(s):
        for x, inside, _ in evaluated(e, ranges):
            whole = [Interval(0, n - 1) for n in x.tensor.shape]
            parts = [
                all_ if (part := inside.of(i)) is None else part.meet(all_)
                for i, all_ in zip(x.index, whole, strict=True)
            ]
            if all(p.lo <= p.hi for p in parts):
                yield x.tensor, tuple(parts)


def _worth(extent: int, part: Interval) -> bool:
    """Whether the saving is worth another shape, which may suit vectors less."""
    left = part.hi - part.lo + 1
    return left < extent and (
        WORTH * left <= (WORTH - 1) * extent or left & -left >= extent & -extent
    )


def _smaller(s: Compute, found: Crop | None) -> Compute:
    """`s`, computing that part only."""
    if found is None:
        return s
    axes = tuple(Axis(a.name, n) for a, n in zip(s.axes, found.tensor.shape, strict=True))
    moved = {a.name: add(a, idx(n)) if n else a for a, n in zip(axes, found.first, strict=True)}
    body = substitute(s.body, moved)
    return msgspec.structs.replace(s, out=found.tensor, axes=axes, body=body)


def _cropped(s: Statement, crops: Mapping[str, Crop]) -> Statement:
    """`s` with its result and operands cropped."""

    def read(x: Load) -> Load:
        found = crops.get(x.tensor.name)
        return x if found is None else Load(found.tensor, found.index(x.index))

    new = _smaller(s, crops.get(s.out.name)) if isinstance(s, Compute) else s
    new = map_exprs(new, lambda e: map_loads(e, read))
    return simplify_compute(new) if isinstance(new, Compute) and new is not s else new
