"""Candidates for cutting maps into tasks."""

from collections.abc import Iterator

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.dependence import apart
from monotile.analysis.masked import copies_rows
from monotile.ir.expr import Load, Tensor
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common import flat
from monotile.kernels.common.cost import Access, Extents, product
from monotile.kernels.common.vectors import fitting, widest
from monotile.kernels.draft import Context, Draft
from monotile.kernels.elementwise.method import Map
from monotile.kernels.family import RowSite
from monotile.kernels.group import Group
from monotile.plan.nodes import Step
from monotile.targets.target import Target


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """Drafts with all axes flattened; none if elements depend on each other."""
    anchor = group.steps[0][0]
    if len(group.steps) != 1 or not _is_independent(anchor):
        return
    target = context.target
    method = Map(_vector(anchor, target))

    def accesses(extents: Extents) -> Access:
        return access(anchor, method, extents, target)

    if not anchor.axes:
        yield flat.draft(group, (), method, context, accesses)
        return
    yield from flat.flat(
        group, method, context, target.threads * method.vector, method.vector, accesses
    )


def in_rows(site: RowSite, context: Context) -> tuple[Step, float] | None:
    """The map as a step of a task with several steps, with its cost; None if it cannot be."""
    anchor, target = site.anchor, context.target
    if not _is_independent(anchor):
        return None
    method = Map(_vector(anchor, target))
    if anchor.axes:
        method = Map(min(method.vector, flat.innermost(site)))
    return flat.in_rows(site, method, context, lambda e: access(anchor, method, e, target))


def _is_independent(s: Compute | Scatter) -> bool:
    """Whether no element is computed from another one, or written where another one is."""
    if isinstance(s, Scatter):
        return len(apart(s)) == len(s.axes)
    return not s.reduce


def _vector(s: Compute | Scatter, target: Target) -> int:
    if isinstance(s, Scatter):
        return _of_scatter(s, target)
    width = widest(s, s.axes[-1] if s.axes else None, target, pieces=True)
    if target.has.lockstep and copies_rows(s):  # whatever reads them, they are stored in vectors
        lanes = target.vector_bytes // s.out.dtype.itemsize
        return max(width, fitting(lanes, s.axes[-1].extent))
    return width


def _of_scatter(s: Scatter, target: Target) -> int:
    """Neighbours along the last axis that are computed, and written side by side, at once."""
    if s.combiner is not None or not s.axes or not target.has.lockstep:
        return 1
    last = s.axes[-1]
    value = Tensor(s.out.name, tuple(a.extent for a in s.axes), s.out.dtype)
    width = widest(Compute(value, s.axes, (), None, s.value), last, target)
    return contiguous_run(offset(Load(s.out, s.index)), last, width)


def access(s: Compute | Scatter, method: Map, extents: Extents, target: Target) -> Access:
    """How threads access a task with these extents."""
    across = target.warp * method.vector
    turns = -(-product(extents, s.axes) // (target.threads * method.vector))
    return Access(method.vector, across, turns=turns if target.has.lockstep else 1)
