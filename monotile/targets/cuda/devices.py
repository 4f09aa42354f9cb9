"""The present GPU, and the figures that belong to it."""

import math
from fnmatch import fnmatchcase

import msgspec
import torch

from monotile.config import Options
from monotile.targets.calibration import Machine, flat, kept, replaced
from monotile.targets.cuda.driver import driver
from monotile.targets.cuda.target import CUDA_TARGETS, GPUS, GpuFigures
from monotile.targets.target import Target

_ALIKE = 1.1  # memories of GPUs of one name differ by less: drivers keep some for themselves


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that a GPU reports.

    architecture: by the name in `CUDA_TARGETS` whose code it runs, or its own where there is none.
    workers:      its multiprocessors. shared_bytes: of on-chip memory that a block may have.
    """

    name: str
    architecture: str
    workers: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes: int


def current_device() -> Device | None:
    """The GPU that is current for PyTorch; None without one."""
    if not torch.cuda.is_available():
        return None
    number = torch.cuda.current_device()
    found = torch.cuda.get_device_properties(number)
    return Device(
        name=found.name,
        architecture=architecture_of(found.major, found.minor),
        workers=found.multi_processor_count,
        l2_bytes=found.L2_cache_size,
        memory_bytes=found.total_memory,
        shared_bytes=driver().shared_bytes(number),
    )


def architecture_of(major: int, minor: int) -> str:
    """The name in `CUDA_TARGETS` whose code a GPU of this compute capability runs; its own where there is none."""
    exact = f"sm_{major}{minor}"
    if f"{exact}a" in CUDA_TARGETS:
        return f"{exact}a"
    older = [a for a in CUDA_TARGETS if a[3:-1] == str(major) and a[-1] <= str(minor)]
    return max(older, default=exact)


def figures_of(device: Device) -> tuple[GpuFigures, bool]:
    """The figures for a device of an architecture in `CUDA_TARGETS`, and whether they are its own.

    Its own: by name and sizes. Else those of the GPU of its architecture whose sizes are nearest, with these sizes replaced by the
    device's, and rates of the whole machine scaled to its multiprocessors.
    """
    alike = [g for g in GPUS.values() if g.architecture == device.architecture]
    for g in alike:
        if _is(g, device):
            return g, True
    nearest = min(alike, key=lambda g: _distance(g, device))
    part = device.workers / nearest.workers
    resized = msgspec.structs.replace(
        nearest,
        workers=device.workers,
        l2_bytes=device.l2_bytes,
        memory_bytes=device.memory_bytes,
        shared_bytes=device.shared_bytes,
        l2_bandwidth=nearest.l2_bandwidth * part,
        flops={name: rate * part for name, rate in nearest.flops.items()},
    )
    return resized, False


def machine_of(device: Device) -> Machine:
    """The device in the form that `monotile calibrate` uses."""
    figures, own = figures_of(device)
    source = f"{figures.name}.json" + ("" if own else ", with this GPU's sizes")
    return Machine(
        name=device.name,
        identity=msgspec.structs.asdict(device),
        shipped=flat(figures),
        source=f"{source}: {figures.source}",
    )


def target_of(device: Device, options: Options) -> Target:
    """The device as a Target: with figures measured on it, else with the shipped ones."""
    figures, _ = figures_of(device)
    found = kept(machine_of(device), options)
    return replaced(figures, found.figures if found else {}).target


def _is(g: GpuFigures, device: Device) -> bool:
    sizes = (g.workers, g.l2_bytes, g.shared_bytes)
    same = sizes == (device.workers, device.l2_bytes, device.shared_bytes)
    memory = max(g.memory_bytes, device.memory_bytes) <= _ALIKE * min(g.memory_bytes, device.memory_bytes)  # fmt: skip
    return same and memory and any(fnmatchcase(device.name, pattern) for pattern in g.devices)


def _distance(g: GpuFigures, device: Device) -> float:
    pairs = (
        (g.workers, device.workers),
        (g.l2_bytes, device.l2_bytes),
        (g.memory_bytes, device.memory_bytes),
    )
    return sum(abs(math.log(max(1, a) / max(1, b))) for a, b in pairs)
