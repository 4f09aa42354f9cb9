"""Sizes the ring buffer in on-chip memory through which weights stream.

It takes all free on-chip memory, so that memory stays busy through hand-offs and stages that stream nothing. Only as many bytes are in
flight at a time as keep memory busy: further loads and hand-offs would queue behind them (docs/measurements.md, "Streamed weights").
"""

from collections.abc import Iterable

from monotile.plan.launch import Ring
from monotile.plan.nodes import Step
from monotile.plan.streams import streams
from monotile.targets.target import Target

UNDER_WAY = 48 << 10  # bytes in flight of a worker
MOST = 208 << 10  # bytes of all slots


def ring(steps: Iterable[Step], used: int, target: Target) -> Ring | None:
    """The ring for the steps that stream, after the `used` bytes; None where none streams, or where there is too little room."""
    methods = [s.method for s in steps if streams(s)]
    if not methods:
        return None
    warps = target.threads // target.warp
    offset = -(-used // Ring.ALIGN) * Ring.ALIGN
    size = -(-max(m.slot_bytes for m in methods) // Ring.ALIGN) * Ring.ALIGN
    under_way = -(-UNDER_WAY // size)
    least = max(m.slots_at_once for m in methods)
    sizes = range(max(MOST // size, least), least - 1, -1)
    threads = Ring.GROUP if "setmaxnreg" in target.instructions else Ring.THREADS
    ways = (Ring(offset, slots, size, under_way, threads) for slots in sizes)
    return next((r for r in ways if offset + r.nbytes(warps) <= target.shared_bytes), None)
