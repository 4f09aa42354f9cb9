"""The Backend of NVIDIA GPUs."""

from collections.abc import Sequence

import torch

from monotile.codegen.source import Source
from monotile.config import Options
from monotile.plan.launch import Launch
from monotile.targets.backend import Backend
from monotile.targets.binary import Binary
from monotile.targets.cuda.build import build, toolchain
from monotile.targets.cuda.calibrate.measure import machine, measure
from monotile.targets.cuda.detect import detect, present
from monotile.targets.cuda.driver import driver
from monotile.targets.cuda.emit import emit, settle
from monotile.targets.cuda.launch import CudaCall, CudaKernel, PointerArray
from monotile.targets.cuda.target import NAMES
from monotile.targets.target import Target


def _build(source: Source, target: Target, options: Options) -> Binary:
    return build(source.text, target, options, source.units)


def _load(
    binary: Binary,
    source: Source,
    launch: Launch,
    pointers: int,
    target: Target,
    device: torch.device,
) -> CudaKernel:
    return CudaKernel(
        binary,
        source.entry,
        launch,
        PointerArray.of(pointers, target.parameter_bytes),
        device=device.index or 0,
        driver=driver(),
        checks=source.checks,
    )


def _device(parameters: Sequence[torch.Tensor]) -> torch.device:
    for x in parameters:
        if x.device.type == "cuda":
            return x.device
    return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)


def _home() -> torch.device:
    return _device(()) if torch.cuda.is_available() else torch.device("cpu")


def obstacle(target: Target, device: torch.device) -> str | None:
    """Why this machine cannot run the target's kernels; None where it can."""
    if not torch.cuda.is_available():
        return (
            f"compiled for {target.name}, which this machine cannot run: PyTorch sees no GPU here."
            ' The source, cubin and plan are there to look at; to run, compile with target="cpu"'
        )
    has = torch.cuda.get_device_capability(device)
    if not runs_on(target.architecture, has):
        return (
            f"compiled for {target.name}, and {device} ({torch.cuda.get_device_name(device)}) is"
            f' sm_{has[0]}{has[1]}. To run here, compile with target="cuda"'
        )
    return None


def runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether a cubin of `architecture` runs on a GPU: of the same major capability and no older minor one; with a suffix ("sm_90a")
    only on exactly that one."""
    digits = architecture.removeprefix("sm_").rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if architecture.endswith("a"):
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]


CUDA = Backend(
    kind="cuda",
    names=NAMES,
    present=present,
    detect=detect,
    suffix=".cu",
    settle=settle,
    emit=emit,
    build=_build,
    toolchain=toolchain,
    outdated=lambda _: False,
    obstacle=obstacle,
    hold=lambda _: None,
    load=_load,
    begin=CudaCall,
    device=_device,
    machine=machine,
    measure=measure,
    home=_home,
)
