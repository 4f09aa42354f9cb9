"""Prefetches of serial Scatters: the operands of several writes together, so that there is one latency instead of one per write."""

from monotile.ir.expr import loads
from monotile.ir.program import Scatter
from monotile.kernels.family import Prefetching
from monotile.kernels.scatter.method import Serial
from monotile.plan.nodes import Prefetch

MOST = 16  # writes at a time: their code is unrolled
MOST_WORDS = 64  # registers for loads in flight


def prefetch(where: Prefetching, at: str) -> tuple[Prefetch, ...]:
    """At "loop", if a thread loops over an axis."""
    step, method = where.step, where.step.method
    anchor = where.statements[step.computes[step.anchor]]
    if not isinstance(method, Serial):
        return ()
    assert isinstance(anchor, Scatter)
    walked = [d.tile for p, d in enumerate(step.dims) if p not in method.parallel]
    if at != "stage" or not walked:
        return ()
    read = {x for e in (anchor.value, *anchor.index) for x in loads(e)}
    words = sum(-(-x.dtype.itemsize // 4) for x in read)
    count = min(MOST, MOST_WORDS // max(1, words), walked[-1])
    return (Prefetch("all", "loop", count),) if read and count > 1 else ()
