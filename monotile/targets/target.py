"""The hardware properties that passes may use. No pass has hardware figures of its own."""

import msgspec

from monotile.targets.model import CostModel


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of a target's hardware and emitter. A pass tests for one of these, never for a kind of target.

    scratchpad:       on-chip memory is addressed: tasks may use `shared_bytes` of it and no more, and what lies there stays.
                      Without it a worker has caches, and `shared_bytes` is what they should hold.
    lockstep:         a worker is warps of threads that run in lockstep and wait for what they load: threads share a
                      reduction, hold a row in their registers, and take a step's elements in turns.
    coalescing:       neighbouring threads that ask for neighbouring elements make one request; narrow and scattered ones cost
                      as much as wide ones.
    register_tiles:   products are register tiles of one thread: operands come through caches, and are packed into
                      panels where they lie badly. Without it they are tiles of warps, whose operands are
                      copied to the scratchpad asynchronously, with zeros where they are masked.
    layouts:          the order in which operands lie decides how they are read, so that what a network makes is laid out for it.
    wide_copies:      operands are copied in pieces as wide as they lie side by side: what the caller holds is worth a copy in
                      another order, and what is narrow is padded.
    any_order:        what is dense in any order of its dimensions is read as it lies; else row by row.
    halos:            tasks may compute rows in front of their own that their neighbours compute as well.
    prefetch:         what a step reads can be asked for before its hand-off, into registers or the scratchpad, and with a
                      cache policy.
    messages:         workers can hand each other a value and its tag in one store, without a barrier.
    many_workers:     there are more workers than many stages have tasks: reductions are split, stages run side by side.
    virtual_workers:  one thread may run the tasks of several workers, so that a launch may have more than there are.
    """

    scratchpad: bool
    lockstep: bool
    coalescing: bool
    register_tiles: bool
    layouts: bool
    wide_copies: bool
    any_order: bool
    halos: bool
    prefetch: bool
    messages: bool
    many_workers: bool
    virtual_workers: bool


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One machine to compile for.

    name:             what `detect_target` takes for it: "cpu", "cuda:sm_90a", "cuda:h200".
    kind:             the key of its `Backend` in `targets.registry`: "cpu" or "cuda".
    architecture:     whose code it runs: "sm_90a"; "" for the CPU.
    has:              its capabilities.
    workers:          resident thread blocks, one a multiprocessor (CUDA), or threads (CPU).
    threads:          threads a worker runs (CPU: 1).
    warp:             threads that run in lockstep (CPU: 1).
    shared_bytes:     on-chip memory that one worker can address (CPU: its part of the L2 cache).
    registers:        32-bit registers a worker has.
    l2_bytes:         last-level cache.
    dram_bandwidth, l2_bandwidth:  bytes a second, whole machine.
    worker_bandwidth: bytes a second into one worker from L2.
    flops:            operations a second of the whole machine: of scalar products ("fma"), and of tensor cores by the bits of an element ("mma8", "mma16", "mma32").
    barrier_seconds:  one barrier of all workers.
    message_seconds:  from a value's store by one worker to its being seen by another that polls it (CUDA).
    latency_seconds:  from a load's issue to its data, L2.
    launch_seconds:   one launch.
    vector_bytes:     widest load of one thread.
    parameter_bytes:  how much a launch can pass by value.
    instructions:     instruction families the code generator may use.
    model:            what the cost models were fitted with.
    """

    name: str
    kind: str
    architecture: str
    has: Capabilities
    workers: int
    threads: int
    warp: int
    shared_bytes: int
    registers: int
    l2_bytes: int
    dram_bandwidth: float
    l2_bandwidth: float
    worker_bandwidth: float
    flops: dict[str, float]
    barrier_seconds: float
    message_seconds: float
    latency_seconds: float
    launch_seconds: float
    vector_bytes: int
    parameter_bytes: int
    instructions: frozenset[str]
    model: CostModel

    @property
    def cached_weight_bytes(self) -> float:
        """How much a network's weights may be and still be in the last-level cache in the next call."""
        return self.l2_bytes * self.model.common.resident
