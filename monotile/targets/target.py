"""What a pass may know about the hardware. No pass holds a number of its own."""

import msgspec

from monotile.errors import TargetError


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the hardware and the emitter of a target can do. A pass asks for one of these, never for a kind of target.

    scratchpad:       on-chip memory is addressed: tasks may use `shared_bytes` of it and no more, and what lies there stays.
                      Without it a worker has caches, and `shared_bytes` is what they should hold.
    lockstep:         a worker is warps of threads that run in lockstep and wait for what they load: threads share a
                      reduction, hold a row in their registers, and take a step's elements in turns.
    coalescing:       neighbouring threads that ask for neighbouring elements make one request; narrow and scattered ones cost
                      as much as wide ones.
    register_tiles:   products are register tiles of one thread: operands come through caches, and are packed into
                      panels where they lie badly. Without it they are tiles of warps, whose operands are
                      copied to the scratchpad asynchronously, with zeros where they are masked.
    layouts:          the order in which operands lie decides how wide they are copied, so that tensors are laid out for it.
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
    any_order: bool
    halos: bool
    prefetch: bool
    messages: bool
    many_workers: bool
    virtual_workers: bool


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One machine to compile for.

    name:             "cpu", or "cuda:sm_90a" and its like.
    kind:             the key of its `Backend` in `targets.registry`: "cpu" or "cuda".
    has:              its capabilities.
    workers:          resident thread blocks, one a multiprocessor (CUDA), or threads (CPU).
    threads:          threads a worker runs (CPU: 1).
    warp:             threads that run in lockstep (CPU: 1).
    shared_bytes:     on-chip memory that one worker can address (CPU: its part of the L2 cache).
    registers:        32-bit registers a worker has.
    l2_bytes:         last-level cache.
    dram_bandwidth, l2_bandwidth:  bytes a second, whole machine.
    worker_bandwidth: bytes a second into one worker from L2.
    flops:            operations a second of the whole machine, by instruction ("fma", "mma16").
    barrier_seconds:  one barrier of all workers.
    message_seconds:  from a value's store by one worker to its being seen by another that polls it (CUDA).
    latency_seconds:  from a load's issue to its data, L2.
    launch_seconds:   one launch.
    vector_bytes:     widest load of one thread.
    parameter_bytes:  how much a launch can pass by value.
    instructions:     instruction families the code generator may use.
    """

    name: str
    kind: str
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

    @property
    def architecture(self) -> str:
        """ "sm_90a" of "cuda:sm_90a"; "" for the CPU."""
        return self.name.partition(":")[2]


_GPU = Capabilities(
    scratchpad=True,
    lockstep=True,
    coalescing=True,
    register_tiles=False,
    layouts=True,
    any_order=True,
    halos=True,
    prefetch=True,
    messages=True,
    many_workers=True,
    virtual_workers=False,
)
_CPU = Capabilities(
    scratchpad=False,
    lockstep=False,
    coalescing=False,
    register_tiles=True,
    layouts=False,
    any_order=False,
    halos=False,
    prefetch=False,
    messages=False,
    many_workers=False,
    virtual_workers=True,
)


def _cuda(architecture: str, **kw: object) -> Target:
    common: dict[str, object] = {
        "name": f"cuda:{architecture}",
        "kind": "cuda",
        "has": _GPU,
        "threads": 256,
        "warp": 32,
        "registers": 65536,
        "vector_bytes": 16,
        "parameter_bytes": 32764,
        "launch_seconds": 5.3e-6,
        "instructions": frozenset({"cp.async", "mma.sync"}),
    }
    return msgspec.convert(common | kw, Target)


# H100: measured for this project, docs/measurements.md. The others: vendors' data sheets for rates and
# sizes, the H100's latencies; to be measured before their speed is relied on.
_H100 = _cuda(
    "sm_90a",
    workers=132,
    shared_bytes=232448,
    l2_bytes=50 << 20,
    dram_bandwidth=3.09e12,
    l2_bandwidth=7.8e12,
    worker_bandwidth=98e9,
    flops={"fma": 67e12, "mma16": 798e12},
    barrier_seconds=1.05e-6,
    message_seconds=0.65e-6,
    latency_seconds=0.6e-6,
    instructions=frozenset({"cp.async", "mma.sync", "wgmma", "tma", "cluster"}),
)
_A100 = _cuda(
    "sm_80",
    workers=108,
    shared_bytes=166912,
    l2_bytes=40 << 20,
    dram_bandwidth=1.55e12,
    l2_bandwidth=4.5e12,
    worker_bandwidth=60e9,
    flops={"fma": 19.5e12, "mma16": 312e12},
    barrier_seconds=1.3e-6,
    message_seconds=0.75e-6,
    latency_seconds=0.7e-6,
)
_SM86 = _cuda(
    "sm_86",
    workers=84,
    shared_bytes=101376,
    l2_bytes=6 << 20,
    dram_bandwidth=0.94e12,
    l2_bandwidth=2.5e12,
    worker_bandwidth=40e9,
    flops={"fma": 35e12, "mma16": 142e12},
    barrier_seconds=1.3e-6,
    message_seconds=0.75e-6,
    latency_seconds=0.7e-6,
)
_SM89 = _cuda(
    "sm_89",
    workers=128,
    shared_bytes=101376,
    l2_bytes=72 << 20,
    dram_bandwidth=1.0e12,
    l2_bandwidth=5.0e12,
    worker_bandwidth=60e9,
    flops={"fma": 82e12, "mma16": 330e12},
    barrier_seconds=1.2e-6,
    message_seconds=0.65e-6,
    latency_seconds=0.6e-6,
)
CUDA_TARGETS = {t.architecture: t for t in (_A100, _SM86, _SM89, _H100)}


def cuda_target(architecture: str, *, workers: int | None = None) -> Target:
    """The Target of an architecture such as "sm_90a" ("sm_90" counts as "sm_90a").

    workers: multiprocessors of the device at hand, where there is one.
    Raises TargetError for an architecture that Monotile has no figures for.
    """
    found = CUDA_TARGETS.get("sm_90a" if architecture == "sm_90" else architecture)
    if found is None:
        known = ", ".join(f'"cuda:{a}"' for a in CUDA_TARGETS)
        raise TargetError(
            f'unknown architecture "{architecture}". Monotile compiles for {known} and "cpu"'
        )
    return found if workers is None else msgspec.structs.replace(found, workers=workers)


def cpu_target(*, workers: int, l2_bytes: int = 1 << 20, vector_bytes: int = 32) -> Target:
    """A CPU with `workers` cores. The rates are typical of a server core; only their ratios matter."""
    return Target(
        name="cpu",
        kind="cpu",
        has=_CPU,
        workers=workers,
        threads=1,
        warp=1,
        shared_bytes=l2_bytes,
        registers=16 * vector_bytes // 4,
        l2_bytes=16 << 20,
        dram_bandwidth=20e9,
        l2_bandwidth=50e9 * workers,
        worker_bandwidth=50e9,
        flops={"fma": 100e9 * workers},
        barrier_seconds=0.5e-6,
        message_seconds=0.5e-6,
        latency_seconds=0.1e-6,
        launch_seconds=2e-6,
        vector_bytes=vector_bytes,
        parameter_bytes=1 << 20,
        instructions=frozenset(),
    )
