"""Runs and times a single kernel of a cubin."""

import ctypes
from collections.abc import Callable, Sequence

import torch

from monotile.targets.binary import Binary
from monotile.targets.cuda.driver import LaunchConfig, driver
from monotile.targets.timing import Timing, timing

WARM, REPEATS = 2, 9


class Launcher:
    """The current GPU, on PyTorch's current stream."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._driver = driver()
        self._context = self._driver.primary_context(self.device.index)

    def function(self, binary: Binary, entry: str, shared: int = 0) -> int:
        """A kernel that may have `shared` bytes of dynamic shared memory a block."""
        with self._driver.within(self._context):
            found = self._driver.load(binary.image, entry)
            if shared:
                self._driver.allow_shared(found, shared)
            return found

    def bytes(self, count: int) -> torch.Tensor:
        """Zeroed device memory."""
        return torch.zeros(count, dtype=torch.uint8, device=self.device)

    def time(
        self,
        function: int,
        shape: tuple[int, int, int],
        arguments: Sequence[object],
        before: Callable[[], object] = lambda: None,
    ) -> Timing:
        """Seconds of a launch. shape: blocks, threads, bytes of shared memory. arguments: tensors, for the addresses of their
        memory, and values of ctypes. before: done before each launch, not timed."""
        config = LaunchConfig(*shape)
        config.stream = torch.cuda.current_stream(self.device).cuda_stream
        values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in arguments]  # fmt: skip
        table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))  # pyright: ignore[reportArgumentType]
        samples: list[float] = []
        for repeat in range(WARM + REPEATS):
            before()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            status = self._driver.launch(
                ctypes.addressof(config), function, ctypes.addressof(table), None
            )
            self._driver.check(status, "launching a probe")
            end.record()
            end.synchronize()
            if repeat >= WARM:
                samples.append(begin.elapsed_time(end) * 1e-3)
        return timing(samples)
