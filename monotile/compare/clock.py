"""How a contender's calls are timed, once they are prepared."""

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as observe

from monotile.compare.jobs import first_line
from monotile.runtime.measure import graphed, measure

Run = Callable[[], Any]  # one call; its results


class Timed(msgspec.Struct, frozen=True):
    """Seconds a call: of an ordinary one, and of one in a CUDA graph. kernels: launches per call. note: a remark for the reader."""

    call: float
    samples: int
    graph: float | None = None
    kernels: int | None = None
    note: str = ""


Timer = Callable[[float], Timed]  # of the seconds to spend on it
Clock = Callable[[Run, torch.device], Timer]


def alone(run: Run, device: torch.device) -> Timer:
    """Of ordinary calls."""

    def timer(seconds: float) -> Timed:
        found = measure(run, device, seconds, _least(device))
        return Timed(found.median, found.samples)

    return timer


def in_graph_too(run: Run, device: torch.device, launches: int | None = None) -> Timer:
    """On a GPU also captured in a CUDA graph: for what runs on PyTorch's stream. launches: of a call, where they are known."""
    if device.type != "cuda":
        return alone(run, device)

    def timer(seconds: float) -> Timed:
        found = alone(run, device)(seconds)
        try:
            graph = measure(graphed(run), device, seconds, _least(device)).median
        except RuntimeError as problem:
            return msgspec.structs.replace(found, note=f"no CUDA graph: {first_line(problem)}")
        return msgspec.structs.replace(found, graph=graph, kernels=launches or _kernels(run))

    return timer


def _least(device: torch.device) -> int:
    """The minimum number of timings for a median."""
    return 100 if device.type == "cuda" else 5


def _kernels(run: Run) -> int | None:
    """Launches of a call, copies and fills included; None if PyTorch's profiler cannot see the device."""
    torch.cuda.synchronize()
    with observe(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    events: Any = seen.events()
    return sum(str(e.device_type).endswith("CUDA") for e in events) or None
