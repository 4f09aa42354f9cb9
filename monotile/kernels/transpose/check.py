"""What a transposing step may be."""

from monotile.ir.program import Compute, Scatter
from monotile.kernels.family import Checked
from monotile.kernels.transpose.match import behind_last
from monotile.kernels.transpose.method import Interleave, Transpose
from monotile.plan.invalid import fail
from monotile.plan.nodes import Dim


def check(c: Checked) -> None:
    """Every task has whole vectors in both orders."""
    stage, step, anchor = c.stage, c.step, c.anchor
    match step.method:
        case Transpose(_, behind):
            axes = step.dims[behind].axes
            if not isinstance(anchor, Compute) or behind_last(anchor) != axes:
                fail(f"{stage.name}: {anchor.out.name} is no copy with {axes} behind the last axis")
            if step.dims[behind].stage is not None:
                fail(
                    f"{stage.name}: a task of {anchor.out.name} has a part of what is behind the last axis"
                )
        case Interleave(vector) if isinstance(anchor, Scatter) or not _whole_runs(
            vector, anchor, step.dims
        ):
            fail(f"{stage.name}: threads do not have {vector} runs of {anchor.out.name} each")
        case _:
            pass


def _whole_runs(vector: int, s: Compute | Scatter, dims: tuple[Dim, ...]) -> bool:
    """Whether vectors divide all of the axis before the last, and every task has the last one whole."""
    if len(dims) != 2 or dims[1].axes != (len(s.axes) - 1,) or dims[1].stage is not None:
        return False
    return not any(size % vector for size in (dims[0].tile, s.axes[-2].extent))
