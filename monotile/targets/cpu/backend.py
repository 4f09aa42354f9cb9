"""The CPU's Backend."""

import torch

from monotile.codegen.source import Source
from monotile.config import Options
from monotile.plan.launch import Launch
from monotile.targets.backend import Backend
from monotile.targets.binary import Binary
from monotile.targets.cpu import build
from monotile.targets.cpu.calibrate import measure
from monotile.targets.cpu.detect import detect, machine
from monotile.targets.cpu.emit import emit, settle
from monotile.targets.cpu.launch import CpuCall, CpuKernel
from monotile.targets.cpu.pages import enlarge
from monotile.targets.target import Target

_HERE = torch.device("cpu")


def _build(source: Source, target: Target, options: Options) -> Binary:
    return build.build(source.text, target, options)


def _load(
    binary: Binary,
    source: Source,
    launch: Launch,
    pointers: int,
    target: Target,  # noqa: ARG001
    device: torch.device,  # noqa: ARG001
) -> CpuKernel:
    return CpuKernel(binary.image, source.entry, launch, pointers, source.checks)


CPU = Backend(
    kind="cpu",
    names=(),
    present=lambda: True,
    detect=detect,
    suffix=".c",
    settle=settle,
    emit=emit,
    build=_build,
    toolchain=lambda: f"{build.find_compiler()} {build.processor()}",
    outdated=lambda binary: binary.processor != build.processor(),
    obstacle=lambda *_: None,
    load=_load,
    hold=enlarge,
    begin=lambda call, _: CpuCall(call),
    device=lambda _: _HERE,
    machine=machine,
    measure=measure,
    home=lambda: _HERE,
)
