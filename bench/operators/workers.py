"""Processes that check one operator after another. One that died or took too long is replaced, and so is one where
something crashed: a GPU's context may be lost with a kernel."""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from bench.operators.check import Result, Settings, check, result
from bench.operators.samples import database

_STARTUP = 300.0


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    name: str | None = None  # the operator that it is at
    deadline: float = 0.0


def results(
    names: Sequence[str], settings: Settings, *, jobs: int, limit: float
) -> Iterator[Result]:
    """The operators' results as they come, from `jobs` processes; `limit`: seconds for an operator."""
    waiting = list(reversed(names))
    workers = [_start(settings) for _ in range(min(jobs, len(names)))]
    while workers:
        ready = wait([w.pipe for w in workers], timeout=1.0)
        for w in list(workers):
            late = time.monotonic() > w.deadline
            if w.pipe not in ready and not late:
                continue
            answer = _receive(w) if w.pipe in ready else "it takes too long"
            if isinstance(answer, str):
                if w.name is None:
                    raise RuntimeError(f"a worker did not start: {answer}")
                answer = result(w.name, settings, [("CRASHED", answer)])
            if answer is not None:
                yield answer
            crashed = answer is not None and answer.verdict == "CRASHED"
            if crashed or not waiting:
                _stop(w)
                workers.remove(w)
                if waiting:
                    workers.append(_start(settings))
            else:
                w.name, w.deadline = waiting.pop(), time.monotonic() + limit
                w.pipe.send(w.name)


def _start(settings: Settings) -> _Worker:
    context = multiprocessing.get_context("spawn")  # a process that has used CUDA cannot be forked
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, settings), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, deadline=time.monotonic() + _STARTUP)


def _stop(w: _Worker) -> None:
    w.pipe.close()
    w.process.kill()
    w.process.join()


def _receive(w: _Worker) -> Any:
    """A Result; None from a worker that is ready for its first operator; a str of why there is nothing."""
    try:
        return w.pipe.recv()
    except EOFError:
        w.process.join()
        return f"the process died (exit code {w.process.exitcode})"


def _serve(pipe: Connection, settings: Settings) -> None:
    torch.set_num_threads(1)
    entries = database()
    pipe.send(None)
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        pipe.send(check(name, entries[name], settings))
