"""Which tasks of a stage compute live elements: the first ones along a tile axis where a size bounds all of the stage's results."""

from collections.abc import Mapping

from monotile.ir.held import live_of
from monotile.ir.program import Compute, Scatter
from monotile.plan.nodes import Dim, LiveTasks, Stage, Step
from monotile.plan.places import Place, Register, held_by_all

Statements = Mapping[str, Compute | Scatter]
Places = Mapping[str, tuple[Place, ...]]


def live_tasks(stage: Stage, statements: Statements, places: Places) -> tuple[LiveTasks, ...]:
    """The number of tasks along each tile axis of `stage` that a size of the call, or a scalar of an earlier stage, bounds."""
    own = {n for step in stage.steps for n in step.computes}
    if stage.everywhere or any(step.method.slot_bytes for step in stage.steps):
        return ()
    found: list[LiveTasks] = []
    for k, extent in enumerate(stage.grid):
        ways = {_along(step, k, statements, places) for step in stage.steps}
        way = ways.pop() if len(ways) == 1 else None
        if extent > 1 and way is not None and (is_given(way, places) or way.size not in own):
            found.append(way)
    return tuple(found)


def is_given(x: LiveTasks, places: Places) -> bool:
    """Whether every worker has the size, without a wait for others."""
    return held_by_all(places[x.size])


def _along(step: Step, k: int, statements: Statements, places: Places) -> LiveTasks | None:
    anchor = statements[step.computes[step.anchor]]
    dim = next((d for d in step.dims if d.stage == k), None)
    if dim is None or dim.lead:
        return None
    ends = {
        _size(statements[n], dim)
        for n in step.computes
        if not all(isinstance(p, Register) for p in places[n]) or n == anchor.out.name
    }
    size = ends.pop() if len(ends) == 1 else None
    if size is None:
        return None
    inner = 1
    for p in _wide(anchor, dim)[1:]:
        inner *= anchor.axes[p].extent
    return LiveTasks(k, size, inner, dim.tile)


def _wide(s: Compute | Scatter, dim: Dim) -> list[int]:
    return [p for p in dim.axes if s.axes[p].extent > 1]


def _size(s: Compute | Scatter, dim: Dim) -> str | None:
    """The size beyond which no element of `s` is live along the outermost axis of `dim`."""
    if any(p >= len(s.axes) for p in dim.axes):
        return None
    wide = _wide(s, dim)
    found = (x for x in live_of(s) if wide and x.axis == s.axes[wide[0]])
    x = next(found, None)
    return x.prefix.name if x is not None and x.prefix is not None else None
