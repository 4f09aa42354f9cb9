"""How a Plan is launched: workers and threads, memory, and the ring through which weights stream."""

from typing import ClassVar, Literal

from monotile.plan.places import Frozen

Functions = Literal["inlined", "separate"]
IndexBits = Literal[32, 64]


class Ring(Frozen, frozen=True):
    """On-chip memory of a worker through which weights stream, in the order in which the Plan needs them. A warp of its own, besides the
    launch's `threads`, fills the slots that are free: across hand-offs, and through stages that stream nothing.

    offset: of the ring in the worker's on-chip memory; first two barriers a slot and what the warps tell the supplier (`device/ring.cuh`).
    under_way: slots that it lets arrive at a time. threads: that warp's; or of a warpgroup whose others end at once, and which keeps REGISTERS a
    thread: those that compute take over the rest.
    """

    offset: int
    slots: int
    slot_bytes: int
    under_way: int
    threads: int = 32

    ALIGN: ClassVar[int] = 128
    THREADS: ClassVar[int] = 32  # that supply
    GROUP: ClassVar[int] = 128
    REGISTERS: ClassVar[int] = 40

    def nbytes(self, warps: int) -> int:
        """Of the whole ring."""
        head = 16 * self.slots + 32 + 4 * warps
        return -(-head // self.ALIGN) * self.ALIGN + self.slots * self.slot_bytes


class Launch(Frozen, frozen=True):
    """workers: grid size. threads: of a block that compute; `block_threads` with those that supply a ring. shared_bytes: dynamic on-chip memory of a worker.
    workspace_bytes: global memory a call needs besides its outputs, 256-byte aligned. message_bytes: behind it, for
    messages: zero at first, and no one else's between calls.
    functions: of the stages: parts of the kernel, but for those that several stages share; or called and compiled one by one. Some that need the
    kernel's own registers stay parts of it (`targets/cuda/emit.py`).
    ring: in `shared_bytes`, behind what stages use; None where no step streams weights.
    notes_bytes: of on-chip memory behind `shared_bytes`, for what a profiled kernel keeps of itself (`plan/records.py`).
    index_bits: of the variables of indices. 32 where all sums of indices are known to fit; a Plan with fewer than they need is refused."""

    workers: int
    threads: int
    shared_bytes: int
    workspace_bytes: int
    message_bytes: int = 0
    functions: Functions = "inlined"
    index_bits: IndexBits = 32
    ring: Ring | None = None
    notes_bytes: int = 0

    @property
    def block_bytes(self) -> int:
        """Of on-chip memory of a worker."""
        return self.shared_bytes + self.notes_bytes

    @property
    def block_threads(self) -> int:
        return self.threads + (self.ring.threads if self.ring else 0)
