"""Launch parameters of a Plan: workers and threads, memory, and the ring through which weights stream."""

from typing import ClassVar, Literal

from monotile.plan.places import Frozen

Functions = Literal["inlined", "separate"]
IndexBits = Literal[32, 64]


class Ring(Frozen, frozen=True):
    """A ring buffer in a worker's on-chip memory through which weights stream, in the order in which the Plan uses them. A separate
    producer warp, besides the launch's `threads`, fills free slots: across hand-offs, and during stages that stream nothing.

    offset: of the ring in the worker's on-chip memory; it begins with two barriers a slot and the consumers' messages to the producer
    (`device/ring.cuh`). under_way: slots in flight at a time. threads: of the producer warp; or of a warpgroup whose other warps exit at
    once, and which keeps REGISTERS a thread: the computing warps take over the rest.
    """

    offset: int
    slots: int
    slot_bytes: int
    under_way: int
    threads: int = 32

    ALIGN: ClassVar[int] = 128
    THREADS: ClassVar[int] = 32  # of the producer
    GROUP: ClassVar[int] = 128
    REGISTERS: ClassVar[int] = 40

    def nbytes(self, warps: int) -> int:
        """Bytes of the whole ring."""
        head = 16 * self.slots + 32 + 4 * warps
        return -(-head // self.ALIGN) * self.ALIGN + self.slots * self.slot_bytes


class Launch(Frozen, frozen=True):
    """workers: grid size. threads: of a block that compute; `block_threads` includes those that fill a ring. shared_bytes: dynamic on-chip
    memory of a worker.
    workspace_bytes: global memory a call needs besides its outputs, 256-byte aligned. message_bytes: after it, for messages; zero at first,
    and used for nothing else between calls.
    functions: how stages become functions: inlined into the kernel unless several stages share one; or called and compiled one by one. Some
    that need the kernel's own registers stay inlined (`targets/cuda/emit.py`).
    ring: in `shared_bytes`, after the stages' on-chip memory; None where no step streams weights.
    notes_bytes: on-chip memory after `shared_bytes` for a profiled kernel's records (`plan/records.py`).
    index_bits: width of index variables. 32 where all sums of indices are known to fit; a Plan with fewer bits than needed is refused."""

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
        """On-chip memory of a worker, in bytes."""
        return self.shared_bytes + self.notes_bytes

    @property
    def block_threads(self) -> int:
        return self.threads + (self.ring.threads if self.ring else 0)
