"""Processes that check graphs: a crash or a standstill in one of them is a verdict."""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

import torch

from tests.fuzz.check import Verdict, check
from tests.fuzz.generate import generate
from tests.fuzz.graph import Graph

PATIENCE = 300.0  # seconds for a network, before its process counts as stuck
Job = int | Graph  # a seed, or the network itself


def _work(connection: Connection, target: str) -> None:
    torch.set_num_threads(1)
    while True:
        job: Job = connection.recv()
        connection.send(check(generate(job) if isinstance(job, int) else job, target))


class Worker:
    """A process that answers jobs with verdicts, one at a time."""

    def __init__(self, target: str) -> None:
        # Forks start at once, but CUDA does not live through one.
        context = multiprocessing.get_context("spawn" if target.startswith("cuda") else "fork")
        self.target = target
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, target), daemon=True)
        self.process.start()
        theirs.close()
        self.worn = False  # whether no other job can be trusted to it
        self.job: Job = -1
        self._since = 0.0

    def give(self, job: Job) -> None:
        self.job, self._since = job, time.monotonic()
        self.connection.send(job)

    @property
    def stuck(self) -> bool:
        return time.monotonic() - self._since > PATIENCE

    def answer(self) -> Verdict:
        try:
            verdict = self.connection.recv() if self.connection.poll() else Verdict("stuck")
        except (EOFError, ConnectionError):
            self.process.join()
            verdict = Verdict("crash", f"exit status {self.process.exitcode}")
        # After an error of the GPU nothing works in its process.
        lost = (
            ("crash", "stuck")
            if not self.target.startswith("cuda")
            else ("crash", "stuck", "RuntimeError")
        )
        self.worn = verdict.kind in lost or "CUDA" in verdict.kind
        return verdict

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def verdicts(seeds: Iterator[int], target: str, jobs: int) -> Iterator[tuple[int, Verdict]]:
    """As they come, from `jobs` processes."""
    busy: list[Worker] = []

    def start() -> None:
        if (seed := next(seeds, None)) is not None:
            busy.append(Worker(target))
            busy[-1].give(seed)

    for _ in range(jobs):
        start()
    while busy:
        ready = wait([w.connection for w in busy], timeout=1.0)
        for w in [w for w in busy if w.connection in ready or w.stuck]:
            verdict, job = w.answer(), w.job
            seed = None if w.worn else next(seeds, None)
            if seed is not None:
                w.give(seed)
            else:
                w.stop()
                busy.remove(w)
                start()
            assert isinstance(job, int)
            yield job, verdict


class Judge:
    """Gives verdicts on graphs, one by one."""

    def __init__(self, target: str) -> None:
        self._worker = Worker(target)

    def verdict(self, graph: Graph) -> Verdict:
        if self._worker.worn:
            self.stop()
            self._worker = Worker(self._worker.target)
        self._worker.give(graph)
        self._worker.connection.poll(PATIENCE)
        return self._worker.answer()

    def stop(self) -> None:
        self._worker.stop()
