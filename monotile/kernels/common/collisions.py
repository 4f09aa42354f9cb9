"""Whether threads and tasks of a Scatter may write to the same element."""

from collections.abc import Iterable

from monotile.analysis.dependence import apart
from monotile.ir.program import Scatter
from monotile.kernels.family import Checked
from monotile.plan.invalid import fail


def check_apart(c: Checked, shared: Iterable[int]) -> None:
    """Raises where two writes may collide. shared: positions of the dims that threads or tasks share."""
    s = c.anchor
    if not isinstance(s, Scatter):
        return
    alone = apart(s)
    if any(p not in alone for k in shared for p in c.step.dims[k].axes):
        fail(f"{c.stage.name}: writes of {s.out.name} may collide")
