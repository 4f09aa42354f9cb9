"""NVIDIA's GPUs as Targets: one file of figures each, in `figures/`."""

from pathlib import Path

import msgspec

from monotile.errors import TargetError
from monotile.targets.files import read_figures
from monotile.targets.model import CostModel
from monotile.targets.target import Capabilities, Target

CAPABILITIES = Capabilities(
    scratchpad=True,
    lockstep=True,
    coalescing=True,
    register_tiles=False,
    layouts=True,
    wide_copies=True,
    any_order=True,
    halos=True,
    prefetch=True,
    messages=True,
    many_workers=True,
    virtual_workers=False,
)


class GpuFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU, measured as far as `source` says. The fields that `Target` has too mean the same there.

    name:          the file's: "h200" of "cuda:h200".
    architecture:  whose code it runs: "sm_90a".
    default:       whether this GPU is the one that "cuda:sm_90a", its architecture, means.
    devices:       names that its driver gives it, "*" for anything.
    source:        where the figures are from, in words.
    workers:       its multiprocessors.
    memory_bytes:  of its own memory.
    chase_seconds: of a dependent load from the last-level cache, as `monotile calibrate` measures it: it scales
                   `latency_seconds`. None where it was not measured.
    """

    name: str
    architecture: str
    default: bool
    devices: tuple[str, ...]
    source: str
    workers: int
    threads: int
    warp: int
    registers: int
    shared_bytes: int
    l2_bytes: int
    memory_bytes: int
    vector_bytes: int
    parameter_bytes: int
    instructions: frozenset[str]
    dram_bandwidth: float
    l2_bandwidth: float
    worker_bandwidth: float
    flops: dict[str, float]
    barrier_seconds: float
    message_seconds: float
    latency_seconds: float
    launch_seconds: float
    chase_seconds: float | None
    model: CostModel

    @property
    def target(self) -> Target:
        common = set(Target.__struct_fields__) & set(self.__struct_fields__) - {"name"}
        return Target(
            name=f"cuda:{self.architecture if self.default else self.name}",
            kind="cuda",
            has=CAPABILITIES,
            **{field: getattr(self, field) for field in common},
        )


GPUS = read_figures(Path(__file__).parent / "figures", GpuFigures)
# By architecture, the GPUs that these names mean.
CUDA_TARGETS = {
    g.architecture: g.target
    for g in sorted(GPUS.values(), key=lambda g: g.architecture)
    if g.default
}


def cuda_target(name: str, *, workers: int | None = None) -> Target:
    """A GPU by its name, such as "h200", or the one that an architecture's name means, such as "sm_90a" ("sm_90" counts as that).

    workers: how many multiprocessors to use, where not all.
    Raises TargetError for a name that Monotile has no figures for.
    """
    if name in GPUS:
        found = GPUS[name].target
    else:
        found = CUDA_TARGETS.get("sm_90a" if name == "sm_90" else name)
    if found is None:
        known = ", ".join(f'"cuda:{n}"' for n in NAMES)
        raise TargetError(f'unknown GPU "{name}". Monotile compiles for {known} and "cpu"')
    return found if workers is None else msgspec.structs.replace(found, workers=workers)


# What may be asked for.
NAMES = (*CUDA_TARGETS, *(g for g in GPUS if g not in CUDA_TARGETS))
