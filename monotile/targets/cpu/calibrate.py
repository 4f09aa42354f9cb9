"""Measures the figures of this CPU: bandwidths, the rate of multiply-adds, the barrier and the call."""

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from monotile.config import Options
from monotile.targets.calibration import Measured
from monotile.targets.cpu.build import build, load
from monotile.targets.cpu.detect import detect
from monotile.targets.target import Target
from monotile.targets.timing import Timing, timing

READ, FMA, BARRIER = range(3)
LARGE = 256 << 20  # bytes that all threads read together: more than caches hold
TERMS = 12  # vectors that `calibrate.c` multiplies and adds in a round
WARM, REPEATS = 2, 9
UNSTEADY = "repeats do not agree"


class _Given(ctypes.Structure):
    """`given` of calibrate.c."""

    _fields_ = (("what", ctypes.c_int64), ("bytes", ctypes.c_int64), ("rounds", ctypes.c_int64))


def source(target: Target) -> str:
    text = Path(__file__).with_suffix(".c").read_text()
    head = f"#define MT_WORKERS {target.workers}\n#define MT_VECTOR_BYTES {target.vector_bytes}\n"
    return head + text


class _Probe:
    def __init__(self, target: Target, options: Options) -> None:
        self.target = target
        self._run = load(build(source(target), target, options).image).monotile_probe
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._memory = mmap.mmap(-1, LARGE)
        self._memory.write(bytes(LARGE))
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def time(self, what: int, nbytes: int, rounds: int) -> Timing:
        given = _Given(what, nbytes, rounds)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(given), self._at)
        samples: list[float] = []
        for repeat in range(WARM + REPEATS):
            begin = time.perf_counter()
            self._run(pointers, None)
            if repeat >= WARM:
                samples.append(time.perf_counter() - begin)
        return timing(samples)


def measure(options: Options, say: Callable[[str], None]) -> dict[str, Measured]:
    """Its figures, by their dotted names. say: a callback for progress messages."""
    target = detect("", options)
    probe, cores = _Probe(target, options), len(os.sched_getaffinity(0))
    threads = min(target.workers, cores)
    say("memory")
    each = LARGE // threads // 4096 * 4096
    found = {"dram_bandwidth": _rate(each * threads, probe.time(READ, each, 1))}
    say("caches")
    inner = target.shared_bytes // 2 // 4096 * 4096
    found["worker_bandwidth"] = _rate(inner * 400, probe.time(READ, inner, 400))
    say("multiply-adds")
    lanes = target.vector_bytes // 4
    found["worker_flops.fma"] = _rate(2 * TERMS * lanes * 400_000, probe.time(FMA, 0, 400_000))
    say("barriers and calls")
    if threads > 1:
        barriers = probe.time(BARRIER, 0, 4000)
        found["barrier_seconds"] = _measured(barriers.seconds / 4000, barriers)
    call = probe.time(BARRIER, 0, 0)
    found["launch_seconds"] = _measured(call.seconds, call)
    return found


def _rate(count: float, found: Timing) -> Measured:
    return _measured(count / found.seconds, found)


def _measured(value: float, found: Timing) -> Measured:
    return Measured(value, "" if found.steady else UNSTEADY)
