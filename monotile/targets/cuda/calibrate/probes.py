"""Bandwidths, latencies, hand-offs and the launch of the current GPU, each by a kernel of probes.cu."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from monotile.config import Options
from monotile.targets.binary import Binary
from monotile.targets.calibration import Measured
from monotile.targets.cuda.build import build
from monotile.targets.cuda.calibrate.launch import Launcher
from monotile.targets.target import Target
from monotile.targets.timing import Timing

LARGE = 1 << 30  # bytes that no cache holds, if there is room for four times that
ROUNDS, LAPS, STEPS = 1000, 50, 4096  # barriers, laps of a flag round all workers, dependent loads
CHASED = 4 << 20  # bytes that dependent loads are spread over: in the last-level cache, not in L1
STRIDE = 4099  # elements from one load to the next, odd: every element is visited
AT_ONCE = 8 * 16  # bytes that a thread of `probe_read` has in flight
UNSTEADY = "repeats do not agree"


def source() -> str:
    return Path(__file__).with_name("probes.cu").read_text()


class Probes:
    """The kernels, ready on the current GPU."""

    def __init__(self, target: Target, options: Options) -> None:
        self.target, self.launcher = target, Launcher()
        self.binary: Binary = build(source(), target, options)
        self.out = self.launcher.bytes(256)
        free, _ = torch.cuda.mem_get_info(self.launcher.device)
        self.large = self.launcher.bytes(self._whole(min(LARGE, free // 4), 2048))

    def _whole(self, nbytes: int, threads: int) -> int:
        """`nbytes` rounded down to a multiple of what `threads` threads of every worker read at once."""
        each = self.target.workers * threads * AT_ONCE
        return nbytes // each * each

    def _time(
        self,
        entry: str,
        threads: int,
        arguments: Sequence[object],
        *,
        shared: int = 0,
        blocks: int | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> Timing:
        function = self.launcher.function(self.binary, entry, shared)
        shape = (self.target.workers if blocks is None else blocks, threads, shared)
        return self.launcher.time(function, shape, arguments, before)

    def measure(self, say: Callable[[str], None]) -> Iterator[tuple[str, Measured]]:
        """Every figure that a probe measures, by its name."""
        say("device memory")
        yield "dram_bandwidth", self.read()
        yield "dram_copy_bandwidth", self.copy()
        say("last-level cache")
        yield "l2_bandwidth", self.cached()
        yield "worker_bandwidth", self.intake()
        say("hand-offs")
        yield "barrier_seconds", self.barrier()
        yield "message_seconds", self.flag()
        say("launch")
        yield "launch_seconds", self.launch()

    def read(self) -> Measured:
        vectors = self.large.numel() // 16
        arguments = [self.large, ctypes.c_uint64(vectors), ctypes.c_uint32(1), self.out]
        found = self._time("probe_read", 1024, arguments)
        return _measured(self.large.numel() / found.seconds, found)

    def copy(self) -> Measured:
        """Bytes a second, read and written together."""
        half = self._whole(self.large.numel() // 2, 1024)
        arguments = [self.large, ctypes.c_uint64(half // 16), self.large[half:]]
        found = self._time("probe_copy", 1024, arguments)
        return _measured(2 * half / found.seconds, found)

    def cached(self) -> Measured:
        """The difference of many rounds and few: neither the launch nor the first round, from memory, counts."""
        half, threads = self.target.l2_bytes // 2, 1024
        while not (nbytes := self._whole(half, threads)):
            threads //= 2
        times = [
            self._time("probe_read", threads, [self.large, ctypes.c_uint64(nbytes // 16), ctypes.c_uint32(rounds), self.out])
            for rounds in (4, 68)
        ]  # fmt: skip
        return _measured(64 * nbytes / (times[1].seconds - times[0].seconds), *times)

    def intake(self) -> Measured:
        """The slope between a third of the on-chip memory and all of it: latency does not count."""
        third = self.target.shared_bytes // 3 // 4096 * 4096
        span, rounds = self.target.l2_bytes // 2, 200
        times = [
            self._time("probe_intake", 256, [self.large, ctypes.c_uint64(span), ctypes.c_uint32(nbytes), ctypes.c_uint32(rounds), self.out], shared=3 * third)
            for nbytes in (third, 3 * third)
        ]  # fmt: skip
        return _measured(2 * third * rounds / (times[1].seconds - times[0].seconds), *times)

    def barrier(self) -> Measured:
        found = self._time("probe_barrier", 256, [self.launcher.bytes(256), ctypes.c_uint32(ROUNDS)])  # fmt: skip
        return _measured(found.seconds / ROUNDS, found)

    def flag(self) -> Measured:
        words = self.launcher.bytes(128 * self.target.workers)
        found = self._time("probe_flag", 32, [words, ctypes.c_uint32(LAPS)], before=words.zero_)
        return _measured(found.seconds / (LAPS * self.target.workers), found)

    def chase(self) -> Measured:
        """Seconds of a load from the last-level cache that waits for the one before."""
        count = CHASED // 4
        following = (torch.arange(count, device=self.launcher.device) + STRIDE) % count
        following = following.to(torch.int32)
        found = self._time("probe_chase", 1, [following, ctypes.c_uint32(STEPS), self.out], blocks=1)  # fmt: skip
        return _measured(found.seconds / STEPS, found)

    def launch(self) -> Measured:
        found = self._time("probe_empty", 256, [self.out])
        return _measured(found.seconds, found)


def _measured(value: float, *timings: Timing) -> Measured:
    return Measured(value, "" if all(t.steady for t in timings) else UNSTEADY)
