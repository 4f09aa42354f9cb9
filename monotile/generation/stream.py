"""Streams tokens to the host while the one kernel generates them.

The kernel stores each token in `news`, in host memory, where -1 marks a token that does not exist yet, and polls `stop` once a token. A
token is one aligned word, so a reader sees it whole or not at all. It implies nothing about other memory, so no ordering is needed.
"""

import atexit
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from monotile.runtime.module import CompiledModule
from monotile.runtime.tensors import host_tensor

SHORTEST, LONGEST = 20e-6, 5e-3  # seconds between two polls
SHARE = 8  # the next poll comes after an eighth of the time waited so far


class Writing:
    """A call of `kernel` that runs until it is done or told to stop. over: whether it has ended, and `ended` has been given its results.

    It keeps alive the tensors that the kernel uses.
    """

    def __init__(
        self,
        kernel: CompiledModule,
        call: tuple[Tensor, ...],
        capacity: int,
        ended: Callable[[Any], None],
    ) -> None:
        """call: all arguments but the last two, `news` and `stop`."""
        device = call[0].device
        self.news = host_tensor((capacity,), -1, torch.int64, device)
        self._stop = host_tensor((), 0, torch.int64, device)
        self._ended = ended
        self.told = self.over = False
        self._running = kernel.begin(*call, self.news, self._stop)
        atexit.register(self.close)

    def finished(self) -> bool:
        """Whether no more tokens will come."""
        return self.over or self._running.finished()

    def tell(self) -> None:
        """Tells the kernel to stop, without waiting: a finaliser may call it."""
        self._stop.fill_(1)
        self.told = True

    def close(self) -> None:
        """Tells the kernel to stop, and waits until it has, for about a token. Raises the kernel's error."""
        if self.over:
            return
        self.tell()
        try:
            results = self._running.result()
        except Exception:
            self._end()
            raise
        self._end()
        self._ended(results)

    def _end(self) -> None:
        self.over = True
        atexit.unregister(self.close)


class Stream(Iterator[int]):
    """The tokens of an answer, each as soon as it exists. The polling interval follows from the time that a token takes.

    `close`, a KeyboardInterrupt in `next`, the end of the last reference or of the process, and another call of the generator stop the
    kernel within about a token.
    """

    def __init__(self, writing: Writing, first: int) -> None:
        """first: the position of the first token."""
        self._writing, self._news, self._at = writing, writing.news.numpy(), first
        weakref.finalize(self, writing.tell).atexit = False  # the process waits, in `Writing.close`

    def __next__(self) -> int:
        begin = time.perf_counter()
        while not self._writing.over:
            finished = self._writing.finished()  # before the poll: a token may come between
            token = int(self._news[self._at]) if self._at < len(self._news) else -1
            if token >= 0:
                self._at += 1
                return token
            if finished:
                self.close()
                break
            waited = time.perf_counter() - begin
            self._pause(min(max(waited / SHARE, SHORTEST), LONGEST))
        raise StopIteration

    def _pause(self, seconds: float) -> None:
        try:
            time.sleep(seconds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops the kernel, and waits until it has. Raises the kernel's error."""
        self._writing.close()
