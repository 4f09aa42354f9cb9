"""Runs a shared object: one call of one native function."""

import atexit
import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from monotile.errors import IndexOutOfRangeError
from monotile.plan.launch import Launch
from monotile.targets.cpu.build import load
from monotile.targets.cpu.pages import enlarge

_STEP = 256  # bytes; alignment of the workspace and of each worker's scratch in it


class _PerThread(threading.local):
    """One calling thread's pointers and workspace: the native function runs without Python's lock."""

    def __init__(self, pointers: int, nbytes: int) -> None:
        self.pointers = (ctypes.c_void_p * pointers)()
        self.weights: tuple[int, ...] | None = None
        self.memory = torch.empty(nbytes + _STEP, dtype=torch.uint8, device="cpu")
        enlarge([self.memory])
        self.workspace = -(-self.memory.data_ptr() // _STEP) * _STEP


class CpuKernel:
    """The function `entry` of the shared object `image`.

    pointers: inputs, outputs and weights together. checks: messages of the run-time index checks.
    """

    def __init__(
        self, image: bytes, entry: str, launch: Launch, pointers: int, checks: tuple[str, ...]
    ) -> None:
        self._run = getattr(load(image), entry)
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._run.restype = ctypes.c_int
        self._checks = checks
        scratch = launch.workers * -(-launch.shared_bytes // _STEP) * _STEP
        self._state = _PerThread(pointers, launch.workspace_bytes + scratch)

    def launch(self, tensors: Sequence[int], weights: tuple[int, ...]) -> None:
        """Runs once. tensors: addresses of the inputs, then the outputs. weights: of the weights' parts.

        Raises IndexOutOfRangeError where an input held an index outside the tensor that it indexes.
        """
        state = self._state
        n = len(tensors)
        if state.weights is not weights:
            state.pointers[n:] = weights
            state.weights = weights
        state.pointers[:n] = tensors
        status = self._run(state.pointers, state.workspace)
        if status:
            raise IndexOutOfRangeError(self._checks[status - 1])


class CpuCall:
    """A call in a separate thread: the kernel runs without Python's lock. The process waits for it before it ends."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._future: Future[Any] = Future()
        self._call = call
        # A daemon: else the process would wait for it before the functions registered for its exit, such as the one that stops it.
        self._thread = threading.Thread(target=self._run, name="monotile-call", daemon=True)
        _threads().add(self._thread)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:  # raised where the result is requested
            self._future.set_exception(error)

    def finished(self) -> bool:
        return self._future.done()

    def result(self) -> Any:
        self._thread.join()
        return self._future.result()


@functools.cache
def _threads() -> "weakref.WeakSet[threading.Thread]":
    """Threads of calls. None may still run when the interpreter ends, which ends threads in the midst of their C++."""
    found: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
    atexit.register(lambda: [t.join() for t in list(found)])
    return found
