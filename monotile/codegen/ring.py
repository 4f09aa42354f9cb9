"""The device's types of the ring through which weights stream, from the two sides."""

from monotile.plan.launch import Ring
from monotile.targets.target import Target


def memory_type(ring: Ring, target: Target) -> str:
    """What lies on chip."""
    return f"mt::RingMemory<{_shape(ring, target)}>"


def ring_type(ring: Ring, target: Target) -> str:
    """As the warps have it that compute."""
    return f"mt::Ring<{_shape(ring, target)}>"


def supplier_type(ring: Ring, target: Target) -> str:
    """As the warp has it that fills it."""
    return f"mt::Supplier<{_shape(ring, target)}, {ring.under_way}>"


def _shape(ring: Ring, target: Target) -> str:
    return f"{ring.slots}, {ring.slot_bytes}, {target.threads // target.warp}"
