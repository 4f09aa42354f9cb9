"""Checks this machine for what Monotile needs."""

import os
import platform

import msgspec
import torch

from monotile.cache import cache_directory
from monotile.config import Options
from monotile.errors import BuildError, MonotileError
from monotile.targets.calibration import kept
from monotile.targets.cpu import build as build_cpu
from monotile.targets.cuda import build as build_cuda
from monotile.targets.cuda.driver import driver
from monotile.targets.cuda.link import nvjitlink_version
from monotile.targets.cuda.target import CUDA_TARGETS, cuda_target
from monotile.targets.detect import detect_target
from monotile.targets.registry import BACKENDS
from monotile.targets.target import Target

KERNEL = 'extern "C" __global__ void k() {}'


class Finding(msgspec.Struct, frozen=True):
    """good: None if the finding is only information."""

    subject: str
    good: bool | None
    words: str


def examine() -> list[Finding]:
    """All findings. Each builder is tried on a one-line kernel."""
    return [
        Finding("Python", None, f"{platform.python_version()} on {platform.platform()}"),
        _torch(),
        _gpu(),
        _driver(),
        _nvrtc(),
        _linker(),
        _compiler(),
        _cores(),
        _default(),
        *_figures(),
        _cache(),
    ]


def _torch() -> Finding:
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return Finding("PyTorch", None, f"{torch.__version__}, built {built}")


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        return Finding("GPU", False, "PyTorch sees none; the CPU is used")
    major, minor = torch.cuda.get_device_capability()
    name = f"{torch.cuda.get_device_name()}, sm_{major}{minor}"
    try:
        target = detect_target("cuda", Options())
    except MonotileError as error:
        return Finding("GPU", False, str(error))
    return Finding("GPU", True, f"{name}, {target.workers} multiprocessors: {target.name}")


def _driver() -> Finding:
    try:
        major, minor = driver().version()
    except MonotileError as error:
        return Finding("driver", False, str(error))
    return Finding("driver", True, f"serves CUDA {major}.{minor}")


def _newest() -> Target:
    return cuda_target(next(reversed(CUDA_TARGETS)))


def _nvrtc() -> Finding:
    try:
        binary = build_cuda.build(KERNEL, _newest(), Options(cache=False))
    except BuildError as error:
        return Finding("NVRTC", False, str(error))
    return Finding("NVRTC", True, f"{binary.compiler}, compiles for {', '.join(CUDA_TARGETS)}")


def _linker() -> Finding:
    try:
        build_cuda.build(KERNEL, _newest(), Options(cache=False), units=1)
    except BuildError as error:
        return Finding("nvJitLink", False, str(error))
    major, minor = nvjitlink_version()
    return Finding("nvJitLink", True, f"{major}.{minor}, links kernels of many functions")


def _compiler() -> Finding:
    try:
        found = build_cpu.find_compiler()
        kernel = "int f(void) { return 0; }"
        build_cpu.build(kernel, detect_target("cpu", Options()), Options(cache=False))
    except BuildError as error:
        return Finding("C compiler", False, str(error))
    return Finding("C compiler", True, f"{found.version} ({' '.join(found.command)})")


def _cores() -> Finding:
    target = detect_target("cpu", Options())
    words = f"{target.workers} cores, {8 * target.vector_bytes}-bit vectors"
    return Finding("CPU", None, f"{words}, {target.shared_bytes >> 10} KiB of L2 cache each")


def _default() -> Finding:
    return Finding("target", None, f'"auto" is {detect_target("auto", Options()).name}')


def _figures() -> list[Finding]:
    """Which figures the cost models use for this machine."""
    out: list[Finding] = []
    for backend in BACKENDS.values():
        if backend.present():
            machine = backend.machine()
            found = kept(machine, Options())
            words = f"{backend.kind}: {machine.source}"
            if found is not None:
                words += f" Of these, {len(found.figures)} as measured here {found.when}"
            out.append(Finding("figures", None, words))
    return out


def _cache() -> Finding:
    folder = cache_directory(Options())
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    good = os.access(nearest, os.W_OK)
    files = [p for p in folder.rglob("*") if p.is_file()] if folder.exists() else []
    size = sum(p.stat().st_size for p in files) / (1 << 20)
    words = f"{folder}, {len(files)} files, {size:.1f} MiB"
    return Finding("cache", good, words if good else f"{words}: cannot be written")
