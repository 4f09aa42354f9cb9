"""The GPU of this machine, or one that is named, as a `Target`."""

import msgspec
import torch

from monotile.config import Options
from monotile.errors import TargetError
from monotile.plan.records import ON_CHIP
from monotile.targets.cuda.driver import driver
from monotile.targets.cuda.target import CUDA_TARGETS, cuda_target
from monotile.targets.target import Target
from monotile.targets.workers import chosen_workers


def present() -> bool:
    """Whether the current GPU is one that Monotile compiles for."""
    return _architecture() in CUDA_TARGETS


def detect(name: str, options: Options) -> Target:
    """The GPU called `name`, such as "sm_90a"; "": the current one.

    With `Options(profile=True)` a worker has room for its notes set aside.
    Raises TargetError where there is none, or it has fewer multiprocessors than `options` asks for.
    """
    target = _named(name, options) if name else _current(options)
    if options.profile:
        return msgspec.structs.replace(target, shared_bytes=target.shared_bytes - ON_CHIP)
    return target


def _architecture() -> str | None:
    """Of the current GPU, by the name in `CUDA_TARGETS` whose code it runs; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    exact = f"sm_{major}{minor}"
    if f"{exact}a" in CUDA_TARGETS:
        return f"{exact}a"
    older = [a for a in CUDA_TARGETS if a[3:-1] == str(major) and a[-1] <= str(minor)]
    return max(older, default=exact)


def _current(options: Options) -> Target:
    architecture = _architecture()
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
    return cuda_target(architecture, workers=chosen_workers(options, count, "multiprocessors"))


def _why_no_gpu() -> str:
    return "" if torch.version.cuda else f" (PyTorch {torch.__version__} is built without CUDA)"


def _named(architecture: str, options: Options) -> Target:
    target = cuda_target(architecture)
    count = target.workers
    if _architecture() == target.architecture:
        count = driver().multiprocessors(torch.cuda.current_device())
    return cuda_target(architecture, workers=chosen_workers(options, count, "multiprocessors"))
