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
    """A kernel that is ready to run on one device."""

    def launch(self, tensors: list[int], weights: tuple[int, ...]) -> None:
        """Runs once. tensors: addresses of the inputs, then the outputs. weights: of the weights' parts."""
        ...


class Running(Protocol):
    """A call that has begun."""

    def finished(self) -> bool:
        """Whether it is over, well or not. What the kernel has written is visible then."""
        ...

    def result(self) -> Any:
        """What the call gives, once it is over. Raises what went wrong."""
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

    kind:       what a spec begins with, "cuda" in "cuda:sm_90a"; `Target.kind`.
    names:      what may follow the colon; such a target is compiled for whether or not this machine is one.
    present:    whether this machine is one that Monotile compiles for: what "auto" asks.
    detect:     the Target of a name, or of this machine for "". Raises TargetError.
    suffix:     of a file with such a source, ".cu".
    settle:     a Plan with what can be chosen only when it is known how its source looks, and the source that `emit` gives of it.
    emit:       the source of a Plan.
    build:      a source to what the machine runs; from the disk cache where it is there. Raises BuildError.
    toolchain:  what builds, in words, found without loading it: it is part of the cache's key.
    outdated:   whether this machine cannot run a Binary because it was built on another one, and is to build it again.
    obstacle:   why this machine cannot run a Target's kernels on a device; None where it can.
    load:       makes a Binary ready to run.
    hold:       prepares the memory of tensors that every call will read; contents and addresses stay.
    begin:      begins a call on a device and does not wait for its kernel.
    device:     where a kernel runs whose parameters are given: their device, or the current one.
    machine:    this machine, for calibration. Raises TargetError where it is none.
    measure:    measures its figures; is given whom to tell what is being measured.
    home:       where a model has to lie to be compiled: the current device, or the CPU where there is none.
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
