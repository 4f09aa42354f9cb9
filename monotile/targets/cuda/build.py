"""Compiles CUDA C++ to a cubin and PTX, with NVRTC from its wheel: no toolkit, driver or GPU is needed.

The headers of `device/` are passed in memory and include no toolkit headers. The cubin is for one real architecture, so a driver of the
same major version runs it, whether older than NVRTC or not.
"""

import functools
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]  # no stubs

from monotile.cache import Cache, key
from monotile.config import Options
from monotile.errors import BuildError, InternalError
from monotile.targets.binary import Binary, excerpt
from monotile.targets.cuda.link import linked, nvjitlink_version
from monotile.targets.target import Target

HEADERS = Path(__file__).resolve().parent.parent
NAME = "monotile.cu"


def nvrtc_version() -> tuple[int, int]:
    """The version of the NVRTC that builds would use. Raises BuildError where there is none."""
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # cuda-pathfinder found no library
        raise BuildError(
            "NVRTC, CUDA's run-time compiler, was not found. Install its wheel:"
            " pip install 'nvidia-cuda-nvrtc==13.0.*'"
        ) from error
    _expect(status)
    return major, minor


def toolchain() -> str:
    """The compilers that builds would use, found without loading them."""
    return f"NVRTC {_version('nvidia-cuda-nvrtc')}, nvJitLink {_version('nvidia-nvjitlink')}"


def _version(distribution: str) -> str:
    return next((d.version for d in distributions(name=distribution)), "of the system")


def build(source: str, target: Target, options: Options, units: int = 0) -> Binary:
    """Compiles for `target.architecture`; uses an equal build from the cache.

    units: number of parts compiled in parallel and linked, with each function separate. That takes a large kernel's compiler a fraction
    of the time, and makes the kernel 3 to 8 % slower. Raises BuildError with NVRTC's log and the source lines that it names.
    """
    version = nvrtc_version()
    flags = _flags(target, options, apart=units > 0)
    cache = Cache.of(options)
    entry = key("cuda", source, flags, version, (units, nvjitlink_version()) if units else ())
    found = Binary.decode(cache.get(entry))
    if found is not None:
        return found
    if not units:
        binary = _compile(source, flags, version)
    else:
        numbered = [(*flags, f"--define-macro=MT_UNIT={k}") for k in range(units)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(lambda own: _compile(source, own, version), numbered))
        binary = linked(parts, target.architecture)
    cache.put(entry, binary.encode())
    return binary


def _flags(target: Target, options: Options, *, apart: bool) -> tuple[str, ...]:
    """apart: gives relocatable PTX."""
    architecture = target.architecture
    flags = (
        f"--gpu-architecture={architecture.replace('sm_', 'compute_') if apart else architecture}",
        "--std=c++20",
        "--dopt=on",
        "--device-as-default-execution-space",  # lambdas whose parameters are auto are not device functions by themselves
        # Threads of the optimiser. From two on their number changes nothing in the PTX; one gives other code, with narrower stores.
        "--split-compile=4",
    )
    if apart:
        flags += ("--relocatable-device-code=true",)
    if options.fast_math:
        flags += ("--use_fast_math",)
    return flags


def _compile(source: str, flags: tuple[str, ...], version: tuple[int, int]) -> Binary:
    """Without an image where the flags ask for PTX alone."""
    compiler = f"NVRTC {version[0]}.{version[1]}"
    headers = device_headers()
    status, program = nvrtc.nvrtcCreateProgram(
        source.encode(),
        NAME.encode(),
        len(headers),
        [content for _, content in headers],
        [name for name, _ in headers],
    )
    _expect(status)
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).strip()
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            lines = [int(n) for n in re.findall(rf"{re.escape(NAME)}\((\d+)\)", log)]
            raise BuildError(
                f"{compiler} refused the generated source (options {' '.join(flags)}).\n"
                f"{excerpt(source, lines)}\n\nIts log:\n{log}"
            )
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(
                f"{compiler} failed with {status.name} (options {' '.join(flags)}). {log}"
            )
        ptx = _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        cubin = _bytes(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Binary("cuda", cubin, ptx, compiler, version, log)


@functools.cache
def device_headers() -> tuple[tuple[bytes, bytes], ...]:
    """(name, content) of every header in `device/`, by the name that an #include gives it."""
    found = sorted(p for p in HEADERS.rglob("*") if p.suffix in (".cuh", ".h"))
    return tuple((str(p.relative_to(HEADERS)).encode(), p.read_bytes()) for p in found)


_Query = Callable[..., tuple[Any, ...]]


def _bytes(program: object, size_of: _Query, get: _Query) -> bytes:
    status, size = size_of(program)
    _expect(status)
    buffer = bytearray(size)
    (status,) = get(program, buffer)
    _expect(status)
    return bytes(buffer)


def _text(program: object, size_of: _Query, get: _Query) -> str:
    return _bytes(program, size_of, get).rstrip(b"\0").decode(errors="replace")


def _expect(status: nvrtc.nvrtcResult) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise InternalError(f"NVRTC answered {status.name}")
