"""The GPU of this machine, or a named one, as a `Target`."""

import msgspec
import torch

from monotile.config import Options
from monotile.errors import TargetError
from monotile.plan.records import ON_CHIP
from monotile.targets.cuda.devices import Device, current_device, target_of
from monotile.targets.cuda.target import CUDA_TARGETS, cuda_target
from monotile.targets.target import Target
from monotile.targets.workers import chosen_workers


def present() -> bool:
    """Whether the current GPU is one that Monotile compiles for."""
    device = current_device()
    return device is not None and device.architecture in CUDA_TARGETS


def detect(name: str, options: Options) -> Target:
    """The GPU called `name`, such as "sm_90a" or "h200"; "": the current one.

    With `Options(profile=True)` a worker has room for its notes set aside.
    Raises TargetError where there is none, or it has fewer multiprocessors than `options` asks for.
    """
    device = current_device()
    target = cuda_target(name) if name else target_of(known_device(device), options)
    count = target.workers
    if device is not None and device.architecture == target.architecture:
        count = device.workers
    workers = chosen_workers(options, count, "multiprocessors")
    room = target.shared_bytes - (ON_CHIP if options.profile else 0)
    return msgspec.structs.replace(target, workers=workers, shared_bytes=room)


def known_device(device: Device | None) -> Device:
    """`device`. Raises TargetError where there is none, or none that Monotile compiles for."""
    if device is None:
        raise TargetError(
            f'PyTorch sees no GPU on this machine{_why_no_gpu()}. Compile with target="cpu", or name an'
            f' architecture to compile for without owning one, such as "cuda:sm_90a"'
        )
    if device.architecture not in CUDA_TARGETS:
        raise TargetError(
            f"this GPU ({device.name}) is {device.architecture}; Monotile compiles for"
            f' {", ".join(CUDA_TARGETS)}. Use target="cpu"'
        )
    return device


def _why_no_gpu() -> str:
    return "" if torch.version.cuda else f" (PyTorch {torch.__version__} is built without CUDA)"
