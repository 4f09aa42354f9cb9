"""The on-chip memory through which weights stream.

Its size is what has to be on its way for memory to be busy. More does not help: loads and hand-offs queue behind what is asked
for ahead, and some multiprocessors get less than others (docs/measurements.md, "Streamed weights").
"""

from collections.abc import Iterable

from monotile.plan.nodes import Ring, Step
from monotile.plan.streams import streams
from monotile.targets.target import Target

UNDER_WAY = 1 << 16  # bytes of a worker
FEWEST = 2  # slots of a warp, which takes two chunks at a time


def ring(steps: Iterable[Step], used: int, target: Target) -> Ring | None:
    """For the steps that stream, behind the `used` bytes, with fewer slots where the room is short; None where none streams, or where there is too
    little room."""
    sizes = [s.method.slot_bytes for s in steps if streams(s)]
    if not sizes:
        return None
    warps = target.threads // target.warp
    offset = -(-used // Ring.ALIGN) * Ring.ALIGN
    size = -(-max(sizes) // Ring.ALIGN) * Ring.ALIGN
    most = max(FEWEST, -(-UNDER_WAY // (warps * size)))
    ways = (Ring(offset, slots, size) for slots in range(most, FEWEST - 1, -1))
    return next((r for r in ways if offset + r.nbytes(warps) <= target.shared_bytes), None)
