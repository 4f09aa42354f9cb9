"""The on-chip memory through which weights stream: as many slots as fit beside what stages use."""

from collections.abc import Iterable

from monotile.plan.nodes import Ring, Step
from monotile.plan.streams import streams
from monotile.targets.target import Target

FEWEST, RESERVED, MOST = (
    2,
    4,
    8,
)  # slots of a warp: at least, kept free of all else if they fit, at most


def ring(steps: Iterable[Step], used: int, target: Target, most: int = MOST) -> Ring | None:
    """For the steps that stream, behind the `used` bytes, with `most` slots or as many as fit; None where none streams, or where the bytes
    leave too little room."""
    sizes = [s.method.slot_bytes for s in steps if streams(s)]
    if not sizes:
        return None
    warps = target.threads // target.warp
    offset = -(-used // Ring.ALIGN) * Ring.ALIGN
    size = -(-max(sizes) // Ring.ALIGN) * Ring.ALIGN
    ways = (Ring(offset, slots, size) for slots in range(most, FEWEST - 1, -1))
    return next((r for r in ways if offset + r.nbytes(warps) <= target.shared_bytes), None)
