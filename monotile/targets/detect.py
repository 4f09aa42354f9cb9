"""The target at hand: what this machine is, as a `Target`."""

import os
from pathlib import Path

import msgspec
import torch

from monotile.config import Options
from monotile.errors import TargetError
from monotile.plan.records import ON_CHIP
from monotile.targets.cuda.driver import driver
from monotile.targets.target import CUDA_TARGETS, Target, cpu_target, cuda_target


def detect_target(spec: str, options: Options) -> Target:
    """The Target that `spec` names.

    "auto": the current GPU if there is one that Monotile compiles for, else the CPU. "cpu": the cores
    that this process may use. "cuda": the current GPU. "cuda:sm_90a" and its like: that architecture, with a
    GPU of it or without. With `Options(profile=True)` a GPU has room for a worker's notes set aside.
    Raises TargetError for an unknown name, "cuda" without a GPU, more workers than the machine has.
    """
    match spec:
        case "auto":
            target = _gpu(options) if _gpu_architecture() in CUDA_TARGETS else _cpu(options)
        case "cpu":
            target = _cpu(options)
        case "cuda":
            target = _gpu(options)
        case _ if spec.startswith("cuda:sm_"):
            target = _named(spec.removeprefix("cuda:"), options)
        case _ if spec.startswith("cuda:") and spec.removeprefix("cuda:").isdigit():
            raise TargetError(
                f'"{spec}" is a device, not a target. Move the model there (model.to("{spec}")) and compile'
                ' with target="cuda"'
            )
        case _:
            raise TargetError(
                f'unknown target "{spec}". There are "auto", "cpu", "cuda" and, to compile without a GPU,'
                f" {_known()}"
            )
    if options.profile and target.kind == "cuda":
        return msgspec.structs.replace(target, shared_bytes=target.shared_bytes - ON_CHIP)
    return target


def _known() -> str:
    return ", ".join(f'"cuda:{architecture}"' for architecture in CUDA_TARGETS)


def _gpu_architecture() -> str | None:
    """Of the current GPU, by the name in `CUDA_TARGETS` whose code it runs; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    exact = f"sm_{major}{minor}"
    if f"{exact}a" in CUDA_TARGETS:
        return f"{exact}a"
    older = [a for a in CUDA_TARGETS if a[3:-1] == str(major) and a[-1] <= str(minor)]
    return max(older, default=exact)


def _gpu(options: Options) -> Target:
    architecture = _gpu_architecture()
    if architecture is None:
        raise TargetError(
            f'PyTorch sees no GPU on this machine{_why_no_gpu()}. Compile with target="cpu", or name an'
            f' architecture to compile for without owning one, such as "cuda:sm_90a"'
        )
    if architecture not in CUDA_TARGETS:
        raise TargetError(
            f"this GPU ({torch.cuda.get_device_name()}) is {architecture}; Monotile compiles for"
            f' {", ".join(CUDA_TARGETS)}. Use target="cpu"'
        )
    count = driver().multiprocessors(torch.cuda.current_device())
    return cuda_target(architecture, workers=_workers(options, count, "multiprocessors"))


def _why_no_gpu() -> str:
    return "" if torch.version.cuda else f" (PyTorch {torch.__version__} is built without CUDA)"


def _named(architecture: str, options: Options) -> Target:
    target = cuda_target(architecture)
    count = target.workers
    if _gpu_architecture() == target.architecture:
        count = driver().multiprocessors(torch.cuda.current_device())
    return cuda_target(architecture, workers=_workers(options, count, "multiprocessors"))


def _cpu(options: Options) -> Target:
    cores = len(os.sched_getaffinity(0))
    return cpu_target(
        workers=_workers(options, cores, "cores that this process may use"),
        l2_bytes=_l2_bytes(),
        vector_bytes=_vector_bytes(),
    )


def _workers(options: Options, available: int, of: str) -> int:
    wanted = options.workers
    if wanted is None:
        return available
    if not 1 <= wanted <= available:
        raise TargetError(
            f"Options(workers={wanted}): all workers run at once, and there are {available} {of}"
        )
    return wanted


def _l2_bytes() -> int:
    """Of one core; 1 MiB where the system does not say."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "level").read_text().strip() == "2":
                size = (index / "size").read_text().strip()
                return int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return 1 << 20


def _vector_bytes() -> int:
    """Widest vector of the processor."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return 16
    return 64 if "avx512f" in words else 32 if "avx2" in words else 16


def device_of(spec: str, options: Options) -> torch.device:
    """Where a model has to lie to be compiled for `spec` and run: the current GPU, or the CPU."""
    if detect_target(spec, options).kind == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
