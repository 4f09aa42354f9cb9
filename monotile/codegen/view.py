"""A read-only view of a Plan's tasks: their steps, and the places of their operands and results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monotile.analysis.affine import Affine
from monotile.analysis.in_place import tables_of
from monotile.codegen.address import coordinates, is_pack, layout, others, readable
from monotile.codegen.site import Site, loop_axes, made_by, point_of, range_of
from monotile.codegen.strips import as_read
from monotile.ir.expr import Axis, Expr, Tensor, axes_of, loads
from monotile.ir.program import Compute, Program, Scatter
from monotile.plan.nodes import PlanNode, Repeat, Resident, Stage, Step
from monotile.plan.places import ON_CHIP, Place
from monotile.plan.walk import repeats


@dataclass(frozen=True, slots=True)
class View:
    """A stage as its tasks see it.

    statements: by the name of their tensor. places: of every tensor. received: tensors that arrive in messages, with their on-chip places.
    sent: results that are messages.
    residents: the stage's pinned weights. tables: dimensions of a weight that select a part. loops: axes of all loops.
    """

    stage: Stage
    statements: Mapping[str, Compute | Scatter]
    places: Mapping[str, tuple[Place, ...]]
    received: Mapping[str, Place]
    sent: frozenset[str]
    residents: tuple[Resident, ...]
    tables: Mapping[str, int]
    loops: Mapping[str, Axis]
    own: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        own = frozenset(name for step in self.stage.steps for name in step.computes)
        object.__setattr__(self, "own", own)

    @property
    def task(self) -> tuple[Axis, ...]:
        """The coordinates of a task."""
        return coordinates(self.stage.grid)

    def site(self, step: Step) -> Site:
        """A step of the stage."""
        before, anchor, rest = made_by(step, self.statements)
        ranges = tuple(range_of(d, self.task, f"d{k}") for k, d in enumerate(step.dims))
        point = point_of(anchor, ranges, self.loops)
        return Site(step, before, anchor, rest, ranges, point)

    def place(self, tensor: Tensor) -> Place:
        """The place from which the stage reads `tensor`."""
        if tensor.name in self.received:
            return self.received[tensor.name]
        return readable(self.places[tensor.name], own=tensor.name in self.own)

    def on_chip(self, tensor: Tensor) -> bool:
        """Whether that is on-chip memory."""
        return isinstance(self.place(tensor), ON_CHIP)

    def offset(self, tensor: Tensor, index: Sequence[Expr], place: Place) -> Affine:
        """Elements from the base of a part of `tensor` in `place` to the element at `index`."""
        table = self.tables.get(tensor.name, 0)
        return layout(place, tensor.shape[table:], self.task).offset(index[table:])

    def packs(self, tensor: Tensor, index: Sequence[Expr], place: Place, lane: Axis) -> bool:
        """Whether the elements of `tensor` in `place`, at an index over `lane` and variables that are uniform over lanes, are one
        access."""
        table = self.tables.get(tensor.name, 0)
        if any(loads(i) for i in index) or any(lane in axes_of(i) for i in index[:table]):
            return False
        offset = self.offset(tensor, index, place)
        if lane in axes_of(others(offset, lane).expr):
            return False
        return is_pack(offset, lane, tensor.dtype.itemsize, place)

    def strides(
        self, tensor: Tensor, index: Sequence[Expr], place: Place, along: Sequence[Axis]
    ) -> tuple[int, ...] | None:
        """Elements from one value of each axis `along` to the next, where they are constant."""
        table = self.tables.get(tensor.name, 0)
        axes = frozenset(along)
        if any(loads(i) for i in index) or any(axes_of(i) & axes for i in index[:table]):
            return None
        offset = self.offset(tensor, index, place)
        if any(axes_of(x) & axes for x, _ in offset.terms if x not in along):
            return None
        return tuple(offset.coefficient(a) for a in along)


@dataclass(frozen=True, slots=True)
class Views:
    """Views of all stages of a Plan, finished or not. statements: adapted to the places that they read."""

    program: Program
    places: Mapping[str, tuple[Place, ...]]
    body: tuple[PlanNode, ...]
    statements: Mapping[str, Compute | Scatter] = field(init=False)
    tables: Mapping[str, int] = field(init=False)
    loops: Mapping[str, Axis] = field(init=False)
    _repeats: tuple[Repeat, ...] = field(init=False)

    def __post_init__(self) -> None:
        tables = tables_of(self.program)
        read = as_read(self.program, self.places, self.body)
        object.__setattr__(self, "statements", read)
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "loops", loop_axes(self.program))
        object.__setattr__(self, "_repeats", tuple(repeats(self.body)))

    def of(self, stage: Stage) -> View:
        """The View of `stage`, which may differ from the Plan's stage of that name."""
        loops = self._repeats
        return View(
            stage,
            self.statements,
            self.places,
            {r.tensor: r.place for n in loops for r in n.receives if r.stage == stage.name},
            frozenset(x.tensor for n in loops for x in n.messages),
            tuple(r for n in loops for r in n.resident if r.stage == stage.name),
            self.tables,
            self.loops,
        )
