"""Which part of a tensor each task of a stage writes or reads: the values passed between tasks, and those private to one."""

from collections.abc import Iterator

import msgspec

from monotile.analysis.affine import Affine, affine, bounds
from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis, Expr, Load, Tensor, loads
from monotile.ir.program import Compute, Scatter
from monotile.plan.nodes import Dim, Stage, Step
from monotile.plan.places import BoxDim

Statements = dict[str, Compute | Scatter]
# dimensions, extents but the first, tile, tile axis, lead
Cut = tuple[tuple[int, ...], tuple[int, ...], int, int, int]


class Part(msgspec.Struct, frozen=True):
    """Task c has the elements at [c * tile, (c + 1) * tile) along each cut (dimensions flattened row-major). If two parts are equal, no
    element is in tasks of two workers."""

    grid: tuple[int, ...]
    first: int
    cuts: frozenset[Cut]


def written_part(stage: Stage, name: str, statements: Statements) -> Part | None:
    """The part of `name` that a task writes; None where the task's grid coordinates alone do not determine it."""
    s = statements[name]
    step = next(step for step in stage.steps if name in step.computes)
    if not isinstance(s, Compute) or step.computes.index(name) < step.anchor:
        return None
    own = Load(s.out, s.axes)
    return _part(stage, step, s, own)


def read_part(stage: Stage, name: str, statements: Statements) -> Part | None:
    """The part of `name` that a task reads; None where it is not a part of the kind that tasks write, or tasks share it."""
    found = {_part(stage, step, s, x) for step, s, x in loads_in(stage, name, statements)}
    return found.pop() if len(found) == 1 else None


def names_read(stage: Stage, statements: Statements) -> tuple[str, ...]:
    """The tensors that the stage loads and does not compute."""
    own = [name for step in stage.steps for name in step.computes]
    found = (x.tensor.name for name in own for x in loads_of(statements[name]))
    return tuple(dict.fromkeys(name for name in found if name not in own))


def loads_in(
    stage: Stage, name: str, statements: Statements
) -> Iterator[tuple[Step, Compute | Scatter, Load]]:
    """The Loads of `name` in the stage."""
    for step in stage.steps:
        for s in (statements[n] for n in step.computes):
            yield from ((step, s, x) for x in loads_of(s) if x.tensor.name == name)


def _part(stage: Stage, step: Step, s: Compute | Scatter, x: Load) -> Part | None:
    """The part of the tensor of `x` that is loaded for the task's elements of `s`."""
    if step.method.own_axes:
        return None
    cuts: list[Cut] = []
    for d in step.dims:
        if d.stage is None or stage.grid[d.stage] == 1:
            continue
        axes = [s.axes[q] for q in d.axes if s.axes[q].extent > 1]
        found = [_dimension(x, a) for a in axes]
        where = [p for p in found if p is not None]
        if step.computes.index(s.out.name) < step.anchor or len(where) < len(found):
            return None
        ahead = [k for _, k in where]
        lead = d.lead + sum(ahead)
        if (len(axes) > 1 and any(ahead)) or lead < 0:
            return None
        extents = tuple(a.extent for a in axes[1:])  # the outermost extent does not matter
        cuts.append((tuple(p for p, _ in where), extents, d.tile, d.stage, lead))
    return Part(stage.grid, stage.first, frozenset(cuts))


def _dimension(x: Load, axis: Axis) -> tuple[int, int] | None:
    """The dimension of `x` that is indexed by `axis` + k alone, and k."""
    for p, i in enumerate(x.index):
        rest = affine(i) + Affine(((axis, -1),))
        if not rest.terms:
            return p, rest.constant
    return None


def box_of(stage: Stage, t: Tensor, statements: Statements) -> tuple[BoxDim, ...]:
    """The smallest box that a Plan can express and that contains all that a task reads of `t`."""
    found = [
        [_along(stage, step, s, x.index[p]) for step, s, x in loads_in(stage, t.name, statements)]
        for p in range(len(t.shape))
    ]
    return tuple(_hull(boxes, n) for boxes, n in zip(found, t.shape, strict=True))


def covers(box: tuple[BoxDim, ...], wanted: tuple[BoxDim, ...], t: Tensor) -> bool:
    """Whether all of `wanted` is in `box`."""
    return len(box) == len(wanted) and all(
        b.extent >= n if b.stage is None else _cut(b) == _cut(w) and b.extent >= w.extent
        for b, w, n in zip(box, wanted, t.shape, strict=True)
    )


def _cut(b: BoxDim) -> tuple[int | None, int]:
    return b.stage, b.tile


def _hull(boxes: list[BoxDim | None], extent: int) -> BoxDim:
    whole = BoxDim(None, extent, extent)
    known = [b for b in boxes if b is not None]
    if len(known) < len(boxes) or len({_cut(b) for b in known}) != 1:
        return whole
    most = max(b.extent for b in known)
    return BoxDim(known[0].stage, known[0].tile, most) if most < extent else whole


def _along(stage: Stage, step: Step, s: Compute | Scatter, i: Expr) -> BoxDim | None:
    """The values that `i` takes in a task, from coordinate * tile on; None where it may take any."""
    if loads(i):
        return None
    whole = affine(i)
    for atom, coefficient in whole.terms:
        d = _dim_of(stage, step, s, atom)
        if d is None or coefficient != 1:
            continue
        rest = bounds(whole + Affine(((atom, -1),)))
        if rest is not None and rest[0] >= 0:
            return BoxDim(d.stage, d.tile, rest[1] + d.tile + d.lead)
    return None


def _dim_of(stage: Stage, step: Step, s: Compute | Scatter, atom: Expr) -> Dim | None:
    """The cut dim that walks the axis `atom` of `s` and nothing else."""
    if step.computes.index(s.out.name) < step.anchor:
        return None
    cut = (d for d in step.dims if d.stage is not None and stage.grid[d.stage] > 1)
    return next((d for d in cut if len(d.axes) == 1 and s.axes[d.axes[0]] == atom), None)
