"""The interface of a kind of target: detection, code generation, build and launch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from monotile.codegen.source import Source
from monotile.config import Options
from monotile.ir.program import Program
from monotile.plan.launch import Launch
from monotile.plan.nodes import Plan
from monotile.targets.binary import Binary
from monotile.targets.calibration import Machine, Measured
from monotile.targets.target import Target


class Kernel(Protocol):
    """A kernel loaded on one device."""

    def launch(self, tensors: list[int], weights: tuple[int, ...]) -> None:
        """Runs once. tensors: addresses of the inputs, then the outputs. weights: addresses of the weights' parts."""
        ...


class Running(Protocol):
    """A call in progress."""

    def finished(self) -> bool:
        """Whether it has finished, successfully or not. The kernel's writes are visible then."""
        ...

    def result(self) -> Any:
        """The call's result, after waiting for its end. Raises the call's error."""
        ...


class Loader(Protocol):
    """Makes a Kernel of a Binary. pointers: how many a launch takes: inputs, outputs and weights. Raises TargetError."""

    def __call__(
        self,
        binary: Binary,
        source: Source,
        launch: Launch,
        pointers: int,
        target: Target,
        device: torch.device,
    ) -> Kernel: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of target. `registry.BACKENDS` has all of them.

    kind:       the first part of a target's name, "cuda" in "cuda:sm_90a"; `Target.kind`.
    names:      what may follow the colon; such a target is compiled for whether or not this machine is one.
    present:    whether this machine is one that Monotile compiles for, for the target "auto".
    detect:     the Target of a name, or of this machine for "". Raises TargetError.
    suffix:     the file name suffix of its sources, ".cu".
    settle:     a Plan with the choices that depend on the length of its source, and the source that `emit` gives of it.
    emit:       the source of a Plan.
    build:      compiles a source for the machine; uses the disk cache. Raises BuildError.
    toolchain:  a description of the compilers, found without loading them: it is part of the cache's key.
    outdated:   whether this machine cannot run a Binary because it was built on another one, and has to build it again.
    obstacle:   why this machine cannot run a Target's kernels on a device; None where it can.
    load:       loads a Binary.
    hold:       prepares the memory of tensors that every call will read; contents and addresses stay.
    begin:      begins a call on a device without waiting for its kernel.
    device:     the device on which a kernel with given parameters runs: theirs, or the current one.
    machine:    this machine, for calibration. Raises TargetError if it is not of this kind.
    measure:    measures its figures; takes a callback for progress messages.
    home:       the device on which a model has to be to be compiled: the current device, or the CPU where there is none.
    """

    kind: str
    names: tuple[str, ...]
    present: Callable[[], bool]
    detect: Callable[[str, Options], Target]
    suffix: str
    settle: Callable[[Program, Plan, Target, Options], tuple[Plan, Source]]
    emit: Callable[[Program, Plan, Target, Options], Source]
    build: Callable[[Source, Target, Options], Binary]
    toolchain: Callable[[], str]
    outdated: Callable[[Binary], bool]
    obstacle: Callable[[Target, torch.device], str | None]
    load: Loader
    hold: Callable[[Iterable[torch.Tensor]], None]
    begin: Callable[[Callable[[], Any], torch.device], Running]
    device: Callable[[Sequence[torch.Tensor]], torch.device]
    machine: Callable[[], Machine]
    measure: Callable[[Options, Callable[[str], None]], dict[str, Measured]]
    home: Callable[[], torch.device]
