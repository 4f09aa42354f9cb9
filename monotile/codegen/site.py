"""A step of a stage as one task executes it: its axes as functions of the task's coordinates. Nothing here emits text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monotile.analysis.affine import Affine, affine
from monotile.codegen.address import loop_variable
from monotile.ir.expr import Axis, Binary, Const, Expr, add, idx, mul, substitute
from monotile.ir.program import Compute, Loop, Program, Scatter, statements
from monotile.plan.nodes import Dim, Step

Point = Mapping[str, Expr]  # maps each axis of a step to an expression


@dataclass(frozen=True, slots=True)
class Range:
    """The part of a Dim that one task iterates over.

    variable: runs from 0; its extent is the Dim's tile, with its lead. origin: its offset. count: text of the number of its values, a
    literal where every
    task has the whole tile. first: coordinate whose task has the lead as well, "" where there is none. low: text of a value up to which all
    may be skipped,
    "" for none.
    """

    dim: Dim
    variable: Axis
    origin: Expr
    count: str
    first: str = ""
    low: str = ""

    @property
    def value(self) -> Expr:
        """The position along the (flattened) axes of the Dim."""
        return add(self.origin, self.variable)


@dataclass(frozen=True, slots=True)
class Span:
    """The live range along an axis: from `first` on and before `end`; literals, or variables of the code."""

    first: Expr
    end: Expr

    @property
    def begins(self) -> bool:
        """Whether positions before it are dead."""
        return not isinstance(self.first, Const)

    @property
    def ends(self) -> bool:
        """Whether positions after it are dead."""
        return not isinstance(self.end, Const)


@dataclass(frozen=True, slots=True)
class Site:
    """A step of a stage: its anchor, the Computes before it and its epilogue, as the task reads them, and the axes as functions of the
    ranges. spans: by axis, where the step is bounded."""

    step: Step
    before: tuple[Compute | Scatter, ...]
    anchor: Compute | Scatter
    followers: tuple[Compute | Scatter, ...]
    ranges: tuple[Range, ...]
    point: Point
    spans: Mapping[str, Span] = field(default_factory=dict[str, Span])

    def named(self, names: Iterable[str]) -> tuple[Compute, ...]:
        """The Computes of the step with these names, in the order of `names`."""
        own = {s.out.name: s for s in (*self.before, self.anchor, *self.followers)}
        return tuple(s for n in names if isinstance(s := own[n], Compute))


def made_by(
    step: Step, statements: Mapping[str, Compute | Scatter]
) -> tuple[tuple[Compute | Scatter, ...], Compute | Scatter, tuple[Compute | Scatter, ...]]:
    """The Computes before the anchor, the anchor, and its epilogue."""
    made, at = tuple(statements[name] for name in step.computes), step.anchor
    return made[:at], made[at], made[at + 1 :]


def at_start(site: Site, r: Range) -> Site:
    """`site` at the start of range `r`, for values that are invariant along it."""
    start: dict[str, Expr] = {r.variable.name: idx(0)}
    point = {name: substitute(e, start) for name, e in site.point.items()}
    return replace(site, point=point)


def ordered(site: Site) -> list[Range]:
    """The site's ranges, the one that contains the last axis innermost."""
    last = len(site.anchor.axes) - 1
    return sorted(site.ranges, key=lambda r: last in r.dim.axes)


def moved(site: Site, r: Range, local: Expr) -> Point:
    """The site's point with `local` as the position in the task's part of `r`."""
    axes = [site.anchor.axes[p] for p in r.dim.axes]
    return {**site.point, **unflatten(add(r.origin, local), axes)}


def unflatten(value: Expr, axes: Sequence[Axis]) -> dict[str, Expr]:
    """The axes whose row-major position is `value`."""
    if not all(a.extent for a in axes):  # there is no position, and nothing may be divided by 0
        return {a.name: idx(0) for a in axes}
    out: dict[str, Expr] = {}
    rest = affine(value)
    for axis in reversed(axes[1:]):
        whole = rest.expr
        out[axis.name] = _op("mod", whole, axis.extent)
        rest = affine(_op("floordiv", whole, axis.extent))
    if axes:
        out[axes[0].name] = rest.expr
    return out


def _op(op: str, a: Expr, divisor: int) -> Expr:
    return affine(Binary(op, a, idx(divisor))).expr


def range_of(
    dim: Dim, task: Sequence[Axis], variable: str, spelled: Callable[[Affine], str] = repr
) -> Range:
    """The part of `dim` that the task at the coordinates `task` iterates over. spelled: text of an index."""
    if dim.stage is None:
        return Range(dim, Axis(variable, dim.extent), idx(0), str(dim.extent))
    origin, most = mul(task[dim.stage], idx(dim.tile)), dim.tile + dim.lead
    count = str(most)
    if (dim.extent - dim.lead) % dim.tile:
        rest = Affine(((task[dim.stage], -dim.tile),), dim.extent)
        count = f"mt_min_idx({most}, {spelled(rest)})"
    first = task[dim.stage].name if dim.lead else ""
    return Range(dim, Axis(variable, most), origin, count, first)


def loop_axes(program: Program) -> dict[str, Axis]:
    """Every axis of a Loop as the variable that holds its iteration."""
    found = (s.axis for s in statements(program.body) if isinstance(s, Loop))
    return {a.name: Axis(loop_variable(a.name), a.extent) for a in found}


def point_of(
    anchor: Compute | Scatter, ranges: Sequence[Range], loops: Mapping[str, Expr]
) -> dict[str, Expr]:
    """Every axis of the anchor, and those of `loops`, as a function of the ranges' variables."""
    out: dict[str, Expr] = dict(loops)
    for r in ranges:
        out |= unflatten(r.value, [anchor.axes[p] for p in r.dim.axes])
    return out
