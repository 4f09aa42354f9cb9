"""The device types of the ring through which weights stream, for its consumers and its producer."""

from monotile.plan.launch import Ring
from monotile.targets.target import Target


def memory_type(ring: Ring, target: Target) -> str:
    """The type of the on-chip part."""
    return f"mt::RingMemory<{_shape(ring, target)}>"


def ring_type(ring: Ring, target: Target) -> str:
    """The type for the computing warps."""
    return f"mt::Ring<{_shape(ring, target)}>"


def supplier_type(ring: Ring, target: Target) -> str:
    """The type for the warp that fills it."""
    return f"mt::Supplier<{_shape(ring, target)}, {ring.under_way}>"


def _shape(ring: Ring, target: Target) -> str:
    return f"{ring.slots}, {ring.slot_bytes}, {target.threads // target.warp}"
