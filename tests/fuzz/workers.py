"""Processes that check graphs: a crash or a standstill in one of them is a verdict."""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

import torch

from tests.fuzz.check import Verdict, check
from tests.fuzz.generate import generate
from tests.fuzz.graph import Graph
from tests.fuzz.shrink import shrink

PATIENCE = 300.0  # seconds for a network, before its process counts as stuck


def _context(
    target: str,
) -> "multiprocessing.context.SpawnContext | multiprocessing.context.ForkContext":
    """Forks start at once, but CUDA does not live through one."""
    return multiprocessing.get_context("spawn" if target == "cuda" else "fork")


def work(connection: Connection, target: str) -> None:
    """A process that is given seeds and answers with verdicts. After an error of the GPU only a new one can go on."""
    torch.set_num_threads(1)
    while (seed := connection.recv()) is not None:
        verdict = check(generate(seed), target)
        connection.send(verdict)
        if target == "cuda" and verdict.is_failure:
            return
    connection.close()


class Worker:
    def __init__(self, target: str) -> None:
        context = _context(target)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, target), daemon=True)
        self.process.start()
        theirs.close()
        self.seed = -1
        self.since = 0.0

    def give(self, seed: int) -> None:
        self.seed, self.since = seed, time.monotonic()
        self.connection.send(seed)

    def answer(self) -> Verdict:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return Verdict("crash", f"exit status {self.process.exitcode}")

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def verdicts(seeds: Iterator[int], target: str, jobs: int) -> Iterator[tuple[int, Verdict]]:
    """As they come. A process that crashes or is stuck is a verdict, and another takes its place."""
    busy: list[Worker] = []
    for _ in range(jobs):
        if (seed := next(seeds, None)) is not None:
            busy.append(Worker(target))
            busy[-1].give(seed)
    while busy:
        ready = wait([w.connection for w in busy], timeout=1.0)
        for w in list(busy):
            stuck = time.monotonic() - w.since > PATIENCE
            if w.connection not in ready and not stuck:
                continue
            verdict = Verdict("stuck") if w.connection not in ready else w.answer()
            yield w.seed, verdict
            seed = next(seeds, None)
            fresh = verdict.kind in ("crash", "stuck") or (target == "cuda" and verdict.is_failure)
            if fresh or seed is None:
                w.stop()
                busy.remove(w)
            if seed is not None:
                if fresh:
                    w = Worker(target)
                    busy.append(w)
                w.give(seed)


def smaller(graph: Graph, verdict: Verdict, target: str) -> Graph:
    """Shrunk in processes of their own where the failure ends a process."""

    def fails(candidate: Graph) -> bool:
        return apart(candidate, target).kind == verdict.kind

    return shrink(graph, fails)


def apart(graph: Graph, target: str) -> Verdict:
    """The verdict of a process of its own."""
    context = _context(target)
    mine, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, graph, target))
    process.start()
    theirs.close()
    try:
        return mine.recv() if mine.poll(PATIENCE) else Verdict("stuck")
    except (EOFError, ConnectionError):
        return Verdict("crash")
    finally:
        process.kill()
        process.join()


def _answer(connection: Connection, graph: Graph, target: str) -> None:
    torch.set_num_threads(1)
    connection.send(check(graph, target))
