"""Times calls on a CPU or a GPU."""

import functools
import statistics
import time
from collections.abc import Callable

import msgspec
import torch


class Times(msgspec.Struct, frozen=True):
    """Seconds per call: the median of `samples` timings, and the fastest."""

    median: float
    best: float
    samples: int


def duration(seconds: float) -> str:
    """Seconds as readable text."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def measure(
    call: Callable[[], object], device: torch.device, budget: float = 1.0, least: int = 5
) -> Times:
    """Times `call` for about `budget` seconds and at least `least` times, after warming up for a fifth of that.

    On a GPU between two events on the current stream, several calls per timing so that launches are queued ahead; on the
    CPU by the wall clock, one call per timing.
    """
    once = _timed(call, device, 1)
    warm = time.perf_counter() + budget / 5
    while time.perf_counter() < warm:
        once = _timed(call, device, 1)
    repeat = max(1, min(50, int(1e-3 / max(once, 1e-9)))) if device.type == "cuda" else 1
    return median_of(lambda: _timed(call, device, repeat), budget, least)


def median_of(once: Callable[[], float], budget: float, least: int) -> Times:
    """The median of what `once` returns, over about `budget` seconds and at least `least` times."""
    samples: list[float] = []
    end = time.perf_counter() + budget
    while len(samples) < least or (time.perf_counter() < end and len(samples) < 10000):
        samples.append(once())
    return Times(statistics.median(samples), min(samples), len(samples))


def _timed(call: Callable[[], object], device: torch.device, repeat: int) -> float:
    """Seconds per call, over `repeat` calls in a row."""
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeat):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / repeat
    start_time = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start_time) / repeat


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """A replay of `call` captured in a CUDA graph; inputs and outputs keep their addresses, and what `call` refers to lives as long as the replay:
    the graph itself holds none of it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return functools.partial(_replay, graph, call)


def _replay(graph: torch.cuda.CUDAGraph, _captured: Callable[[], object]) -> None:
    graph.replay()
