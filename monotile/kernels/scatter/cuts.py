"""How Scatters whose writes may collide are cut into tasks: along axes that keep writes apart."""

from collections.abc import Iterator

from monotile.analysis.dependence import independent
from monotile.ir.program import Scatter
from monotile.kernels.common import flat
from monotile.kernels.common.cost import Access, Extents
from monotile.kernels.draft import Context, Draft
from monotile.kernels.family import RowSite
from monotile.kernels.group import Group
from monotile.kernels.scatter.method import Serial
from monotile.plan.nodes import Dim, Step
from monotile.targets.target import Target


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """One way; none for what is no Scatter, or keeps all its writes apart."""
    anchor, target = group.steps[0][0], context.target
    method = _serial(anchor) if isinstance(anchor, Scatter) and len(group.steps) == 1 else None
    if method is None or not isinstance(anchor, Scatter):
        return
    yield flat.draft(group, _dims(anchor, method, target), method, context, _access(target))


def in_rows(site: RowSite, context: Context) -> tuple[Step, float] | None:
    """As a step of a task with several."""
    method = _serial(site.anchor) if isinstance(site.anchor, Scatter) else None
    if method is None:
        return None
    return flat.in_rows(site, method, context, _access(context.target))


def _serial(s: Scatter) -> Serial | None:
    apart = independent(s.index, s.axes)
    return None if len(apart) == len(s.axes) else Serial(tuple(sorted(apart)))


def _access(target: Target) -> flat.Accesses:
    def access(_extents: Extents) -> Access:
        return Access(1, target.warp)

    return access


def _dims(s: Scatter, method: Serial, target: Target) -> tuple[Dim, ...]:
    """One dim an axis; those that threads share are cut, the first ones first, for as many workers as there are."""
    shared = method.parallel
    least = max(target.warp, target.vector_bytes // s.out.dtype.itemsize)  # neighbours in memory
    wanted = target.workers
    dims: list[Dim] = []
    cut_axes = 0
    for p, axis in enumerate(s.axes):
        tile = max(1, -(-axis.extent // wanted), least if p == len(s.axes) - 1 else 1)
        if p not in shared or tile >= axis.extent:
            dims.append(Dim((p,), axis.extent, axis.extent, None))
            continue
        dims.append(Dim((p,), axis.extent, tile, cut_axes))
        cut_axes += 1
        wanted = -(-wanted // -(-axis.extent // tile))
    return tuple(dims)
