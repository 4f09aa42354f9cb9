"""The other ways to run a network, an entry each: how it is made and timed, what it needs, and on which forms of a network it runs."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import torch

from monotile.compare import clock, onnxruntime, openvino, xla
from monotile.compare.clock import Clock, Run
from monotile.compare.forms import FORMS
from monotile.compare.jobs import Job, Network
from monotile.runtime.reference import Call
from monotile.targets.detect import kind_of


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """make: of a network, its module in one of the forms, a call and the device, what runs that call; it compiles then or at its first run,
    and raises Absent. clock: how it is timed. packages: modules that have to be installed. targets: kinds on which it runs; empty: any.
    lacks: why there is no version of a network. usual: whether it is timed unless it is asked for."""

    make: Callable[[Network, torch.nn.Module, Call, torch.device], Run]
    clock: Clock = clock.in_graph_too
    forms: tuple[str, ...] = tuple(FORMS)
    packages: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    lacks: Callable[[Network], str | None] = lambda _: None
    usual: bool = True
    compiles: bool = True

    @property
    def versions(self) -> dict[str, str]:
        """Of its packages."""
        return {name: importlib.import_module(name).__version__ for name in self.packages}


def _eager(_: Network, model: torch.nn.Module, call: Call, device: torch.device) -> Run:
    del device
    return partial(model, *call[0], **call[1])


def _compile(
    _: Network, model: torch.nn.Module, call: Call, device: torch.device, mode: str | None = None
) -> Run:
    del device
    made: Any = torch.compile(model, mode=mode)
    return partial(made, *call[0], **call[1])


# What takes longest to compile comes first. On a GPU the timing process captures PyTorch's in a CUDA graph, so none does so itself.
RIVALS: dict[str, Rival] = {
    "max-autotune": Rival(make=partial(_compile, mode="max-autotune-no-cudagraphs"), usual=False),
    "compile": Rival(make=_compile),
    "xla": Rival(make=xla.run, clock=xla.clock, forms=("module",), packages=("jax",), lacks=xla.lacks),
    "openvino": Rival(
        make=openvino.run, clock=clock.alone, forms=("module", "plain"), packages=("openvino",), targets=("cpu",)
    ),
    "onnxruntime": Rival(
        make=onnxruntime.run, clock=clock.alone, forms=("module", "plain"), packages=("onnxruntime", "onnx", "onnxscript")
    ),
    "eager": Rival(make=_eager, compiles=False),
}  # fmt: skip


def missing(job: Job) -> str | None:
    """Why the job's rival is not available here, as far as that is known without loading the network. None for ours."""
    rival = RIVALS.get(job.way)
    if rival is None:
        return None
    if why := rival.lacks(job.network):
        return why
    kind = kind_of(job.target.partition(":")[0]).kind
    if rival.targets and kind not in rival.targets:
        return f"it runs on {' and '.join(rival.targets)} alone"
    lost = [name for name in rival.packages if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(lost)}" if lost else None
