"""Launches a cubin: one cooperative launch on PyTorch's current stream.

Resources of a launch, so that threads and streams may call concurrently and a call may be captured in a CUDA graph:
- workspace: one for each stream, as calls on one stream run in order. A captured call has a separate one from the capture's memory pool,
  since its graph may be replayed on any stream. The memory of messages follows it: zero at first, then left alone between calls, so a
  captured call that has messages gets memory outside of any pool.
- sync: 128 zeroed bytes, in which the kernel leaves zeros and the last tag of its messages. One for each stream, and one for every captured
  call; nothing is ever cleared on the stream.
- the parameter block: one for each calling thread; the driver copies it during the launch.
A cubin, sync words, a captured call's messages and its table of pointers live as long as the process: a graph may hold them.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from monotile.errors import TargetError
from monotile.plan.launch import Launch
from monotile.targets.binary import Binary
from monotile.targets.cuda.driver import Driver, DriverError, LaunchConfig
from monotile.targets.cuda.failures import Failures, check_all
from monotile.targets.cuda.streams import capturing, current_gpu

_SLOT = 128  # bytes of sync words that belong to one call at a time
_SLOTS = 128  # to a slab


class _SyncSlots:
    """Allocates zeroed sync words of one device. Not freed: see above."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._next = self._end = 0
        self._grow()

    def _grow(self) -> None:
        self._next = self._driver.zeros(_SLOT * _SLOTS)
        self._end = self._next + _SLOT * _SLOTS

    def take(self) -> int:
        with self._lock:
            if self._next == self._end:
                self._grow()
            slot = self._next
            self._next += _SLOT
            return slot


class _StreamState(msgspec.Struct, frozen=True):
    """Addresses; memory and table keep the memory alive."""

    workspace: int
    sync: int
    table: int
    memory: torch.Tensor | None
    table_memory: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PointerArray:
    """The launch's pointers, of inputs, outputs and weights: passed by value, or as a table in device memory."""

    count: int
    by_value: bool

    @staticmethod
    def of(count: int, parameter_bytes: int) -> "PointerArray":
        """Pointers by value if the launch's parameters have room for them and two more words, else as a table."""
        return PointerArray(count, 16 + 8 * count <= parameter_bytes)


class _PerThread(threading.local):
    """One calling thread's launch: its configuration, and its parameter block (workspace, sync, then the
    pointers or the table's address)."""

    def __init__(
        self, launch: Launch, pointers: PointerArray, driver: Driver, context: int
    ) -> None:
        if driver.current_context() == 0:
            driver.set_context(context)  # a thread that has not used CUDA yet
        self.block = (ctypes.c_uint64 * (2 + (pointers.count if pointers.by_value else 1)))()
        self.table = None if pointers.by_value else (ctypes.c_uint64 * pointers.count)()
        self.arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self.block))
        self.config = LaunchConfig(launch.workers, launch.block_threads, launch.block_bytes)
        self.config_at = ctypes.addressof(self.config)
        self.arguments_at = ctypes.addressof(self.arguments)
        self.weights: tuple[int, ...] | None = None


class CudaKernel:
    """The kernel `entry` of a cubin on GPU number `device`. checks: messages of the run-time index checks.

    Raises TargetError where the driver is too old or the launch's blocks cannot all be resident.
    """

    def __init__(
        self,
        binary: Binary,
        entry: str,
        launch: Launch,
        pointers: PointerArray,
        *,
        device: int,
        driver: Driver,
        checks: tuple[str, ...] = (),
    ) -> None:
        _refuse_old(driver, binary)
        self._driver = driver
        self._device = device
        self._launch = launch
        self._pointers = pointers
        self._context = driver.primary_context(device)
        with driver.within(self._context):
            try:
                self._function = driver.load(binary.image, entry)
                driver.allow_shared(self._function, launch.block_bytes)
                fits = driver.resident_blocks(
                    self._function, launch.block_threads, launch.block_bytes
                )
            except DriverError as error:
                raise TargetError(
                    f"GPU {device} ({torch.cuda.get_device_name(device)}) does not take the kernel: {error}"
                ) from error
            _refuse_crowd(driver, device, launch, fits)
            self._slots = _SyncSlots(driver)
            self._failures = Failures(driver, self._function, checks)
        self._state = _PerThread(launch, pointers, driver, self._context)
        self._streams: dict[int, _StreamState] = {}
        self._lock = threading.Lock()
        self._captured: list[object] = []
        self._stream = _stream_getter(device)

    def launch(self, tensors: Sequence[int], weights: tuple[int, ...]) -> None:
        """Launches once. tensors: addresses of the inputs, then the outputs. weights: of the weights' parts."""
        if current_gpu() != self._device:
            with torch.cuda.device(self._device):
                self._enqueue(tensors, weights)
        else:
            self._enqueue(tensors, weights)

    def _enqueue(self, tensors: Sequence[int], weights: tuple[int, ...]) -> None:
        stream = self._stream()
        if capturing():
            on = self._new_state()
        else:
            on = self._streams.get(stream) or self._state_of(stream)
        thread = self._state
        block = thread.block
        block[0] = on.workspace
        block[1] = on.sync
        if thread.table is None:
            n = 2 + len(tensors)
            if thread.weights is not weights:
                block[n:] = weights
                thread.weights = weights
            block[2:n] = tensors
            self._start(thread, stream)
        else:
            table = thread.table
            table[: len(tensors)] = tensors
            table[len(tensors) :] = weights
            block[2] = on.table
            if on is not self._streams.get(
                stream
            ):  # captured: a replay reads the host's table again
                table = (ctypes.c_uint64 * self._pointers.count)(*table)
                self._captured.append(table)
            with self._lock:  # of two threads on one stream, each table must meet its own launch
                source = ctypes.addressof(table)
                self._driver.copy_in(on.table, source, 8 * self._pointers.count, stream)
                self._start(thread, stream)

    def _start(self, thread: _PerThread, stream: int) -> None:
        thread.config.stream = stream
        status = self._driver.launch(thread.config_at, self._function, thread.arguments_at, None)
        if status:
            check_all()
            self._driver.check(status, "launching the kernel")

    def _state_of(self, stream: int) -> _StreamState:
        with self._lock:
            if stream not in self._streams:
                self._streams[stream] = self._new_state()
            return self._streams[stream]

    def _new_state(self) -> _StreamState:
        workspace, memory = self._workspace()
        pointers = self._pointers
        table = None if pointers.by_value else self._allocate(8 * pointers.count)
        return _StreamState(
            workspace=workspace,
            sync=self._slots.take(),
            table=0 if table is None else table.data_ptr(),
            memory=memory,
            table_memory=table,
        )

    def _workspace(self) -> tuple[int, torch.Tensor | None]:
        """Its address, and what keeps it alive."""
        messages = self._launch.message_bytes
        nbytes = self._launch.workspace_bytes + messages
        if messages and capturing():
            return self._driver.zeros(nbytes), None
        memory = self._allocate(nbytes)
        if memory is None:
            return 0, None
        if messages:
            memory[-messages:].zero_()
        return memory.data_ptr(), memory

    def _allocate(self, nbytes: int) -> torch.Tensor | None:
        """Memory of PyTorch's allocator, on the current stream; None for no bytes."""
        if nbytes == 0:
            return None
        return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", self._device))


class CudaCall:
    """A call in PyTorch's current stream of a GPU."""

    def __init__(self, call: Callable[[], Any], device: torch.device) -> None:
        self._call = call  # with its arguments, which may lie in the host's memory
        with torch.cuda.device(device):
            self._given = call()
            self._over = torch.cuda.Event()
            self._over.record()

    def finished(self) -> bool:
        try:
            return self._over.query()
        except RuntimeError:  # the kernel has failed: `result` says why
            return True

    def result(self) -> Any:
        try:
            self._over.synchronize()
        except RuntimeError:
            check_all()
            raise
        return self._given


def _stream_getter(device: int) -> Callable[[], int]:
    """Gives the handle of PyTorch's current stream; Inductor's own way, ten times as fast as the public one."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # pyright: ignore[reportPrivateUsage]
    if raw is None:
        return lambda: torch.cuda.current_stream(device).cuda_stream
    return lambda: raw(device)


def _refuse_old(driver: Driver, binary: Binary) -> None:
    version = driver.version()
    if version[0] < binary.cuda[0]:
        raise TargetError(
            f"the driver on this machine serves CUDA {version[0]}.{version[1]}, and the kernel was built by"
            f" {binary.compiler}: it needs a driver of CUDA {binary.cuda[0]}.0 or later. Update the"
            f" driver, or install an older NVRTC (pip install 'nvidia-cuda-nvrtc-cu12') and compile again"
        )


def _refuse_crowd(driver: Driver, device: int, launch: Launch, fits: int) -> None:
    """One cooperative launch needs every block resident at once, or its barriers would wait for ever."""
    if not driver.cooperative(device):
        raise TargetError(f"GPU {device} has no cooperative launch, which one kernel needs")
    room = fits * driver.multiprocessors(device)
    if launch.workers > room:
        raise TargetError(
            f"the plan wants {launch.workers} resident blocks of {launch.block_threads} threads and"
            f" {launch.block_bytes} bytes of shared memory; GPU {device} holds {room}."
            f' Compile on this machine with target="cuda", or with Options(workers={max(room, 1)})'
        )
