"""Checks that a transposing step is valid."""

from monotile.ir.program import Compute, Scatter
from monotile.kernels.family import Checked
from monotile.kernels.transpose.match import axes_after_last, together
from monotile.kernels.transpose.method import Interleave, Transpose, TransposeTiles
from monotile.kernels.transpose.settle import exact_vector
from monotile.plan.invalid import fail
from monotile.plan.nodes import Dim


def check(c: Checked) -> None:
    """Fails unless every task has whole vectors in both memory orders."""
    stage, step, anchor = c.stage, c.step, c.anchor
    match step.method:
        case Transpose(_, behind):
            axes = step.dims[behind].axes
            if not isinstance(anchor, Compute) or axes_after_last(anchor) != axes:
                fail(f"{stage.name}: {anchor.out.name} is no copy with {axes} behind the last axis")
            if step.dims[behind].stage is not None:
                fail(
                    f"{stage.name}: a task of {anchor.out.name} has a part of what is behind the last axis"
                )
        case TransposeTiles() as m:
            _check_tiles(c, m)
        case Interleave(vector) if isinstance(anchor, Scatter) or not _whole_runs(
            vector, anchor, step.dims
        ):
            fail(f"{stage.name}: threads do not have {vector} runs of {anchor.out.name} each")
        case _:
            pass


def _check_tiles(c: Checked, m: TransposeTiles) -> None:
    """Fails unless the tiles are of the two exchanged axes, and vectors are contiguous and aligned on both sides."""
    stage, step, anchor = c.stage, c.step, c.anchor
    behind = axes_after_last(anchor) if isinstance(anchor, Compute) else ()
    sides = step.dims[m.rows], step.dims[m.columns]
    if not isinstance(anchor, Compute) or [d.axes for d in sides] != [
        (len(anchor.axes) - 1,),
        together(behind),
    ]:
        fail(f"{stage.name}: {anchor.out.name} is no copy in which these axes change places")
    elif any(d.tile > m.extent or d.tile % m.vector for d in sides):
        fail(
            f"{stage.name}: tiles of {anchor.out.name} are larger than {m.extent}, or no whole vectors"
        )
    elif exact_vector(m, anchor, step.dims, c.view.places) != m.vector:
        fail(f"{stage.name}: vectors of {anchor.out.name} are not {m.vector} wide")


def _whole_runs(vector: int, s: Compute | Scatter, dims: tuple[Dim, ...]) -> bool:
    """Whether vectors divide the axis before the last, and every task has the whole last axis."""
    if len(dims) != 2 or dims[1].axes != (len(s.axes) - 1,) or dims[1].stage is not None:
        return False
    return not any(size % vector for size in (dims[0].tile, s.axes[-2].extent))
