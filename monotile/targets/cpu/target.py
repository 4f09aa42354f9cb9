"""A CPU as a `Target`: `figures/cpu.json` and the machine's own information."""

from pathlib import Path

import msgspec

from monotile.targets.files import read_figures
from monotile.targets.model import CostModel
from monotile.targets.target import Capabilities, Target

CAPABILITIES = Capabilities(
    scratchpad=False,
    lockstep=False,
    coalescing=False,
    register_tiles=True,
    layouts=True,
    wide_copies=False,
    any_order=False,
    halos=False,
    prefetch=False,
    messages=False,
    many_workers=False,
    virtual_workers=True,
)


class CpuFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures that the machine does not report. Fields that `Target` has too have the same meaning there.

    source:            where the figures are from, in words.
    last_level_bytes:  of the last-level cache.
    worker_flops:      operations a second of one core, by instruction.
    """

    name: str
    source: str
    threads: int
    warp: int
    last_level_bytes: int
    parameter_bytes: int
    dram_bandwidth: float
    worker_bandwidth: float
    worker_flops: dict[str, float]
    barrier_seconds: float
    message_seconds: float
    latency_seconds: float
    launch_seconds: float
    model: CostModel


FIGURES = read_figures(Path(__file__).parent / "figures", CpuFigures)["cpu"]


def cpu_target(
    *,
    workers: int,
    l2_bytes: int = 1 << 20,
    vector_bytes: int = 32,
    instructions: frozenset[str] = frozenset(),
    figures: CpuFigures = FIGURES,
) -> Target:
    """A CPU with `workers` cores, `l2_bytes` of L2 cache each. instructions: of products of words, such as it
    has: "vnni" (bytes), "amx.bf16" and "amx.int8"."""
    f = figures
    return Target(
        name=f.name,
        kind="cpu",
        architecture="",
        has=CAPABILITIES,
        workers=workers,
        threads=f.threads,
        warp=f.warp,
        shared_bytes=l2_bytes,
        registers=16 * vector_bytes // 4,
        l2_bytes=f.last_level_bytes,
        dram_bandwidth=f.dram_bandwidth,
        l2_bandwidth=f.worker_bandwidth * workers,
        worker_bandwidth=f.worker_bandwidth,
        flops={name: rate * workers for name, rate in f.worker_flops.items()},
        barrier_seconds=f.barrier_seconds,
        message_seconds=f.message_seconds,
        latency_seconds=f.latency_seconds,
        launch_seconds=f.launch_seconds,
        vector_bytes=vector_bytes,
        parameter_bytes=f.parameter_bytes,
        instructions=instructions,
        model=f.model,
    )
