"""Runs each job in a process of its own. Several prepare at a time; one at a time is timed while all others are stopped."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from monotile.compare.jobs import Job, Outcome

Report = Callable[[Job, Outcome], None]
Process = subprocess.Popen[bytes]


def run(jobs: Sequence[Job], *, at_once: int, limit: float, report: Report) -> None:
    """Calls `report` with each job's Outcome as it arrives, one at a time. limit: seconds for a job, from its start."""
    processes = _Processes()
    telling = threading.Lock()

    def one(job: Job) -> None:
        outcome = _run(job, processes, limit, at_once)
        with telling:
            report(job, outcome)

    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(one, job) for job in jobs]:
            done.result()


class _Processes:
    """The processes that run, one of which may be timed. Each leads a group, so that it stops with all its children."""

    def __init__(self) -> None:
        self._timing = threading.Lock()
        self._alive: set[int] = set()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]
    ) -> Process:
        """Waits until no other process is timed."""
        with self._timing:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
            self._alive.add(child.pid)
            return child

    @contextmanager
    def alone(self, child: Process) -> Generator[None]:
        with self._timing:
            others = self._alive - {child.pid}
            for group in others:
                _signal(group, signal.SIGSTOP)
            try:
                yield
            finally:
                for group in others:
                    _signal(group, signal.SIGCONT)

    def end(self, child: Process) -> None:
        """Kills the process and its children."""
        self._alive.discard(child.pid)
        _signal(child.pid, signal.SIGKILL)
        with child:  # closes its pipes and waits
            pass


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _run(job: Job, processes: _Processes, limit: float, at_once: int) -> Outcome:
    command = [sys.executable, "-m", "monotile.compare.worker", msgspec.json.encode(job).decode()]
    with tempfile.TemporaryDirectory(
        prefix="monotile-bench-", ignore_cleanup_errors=True
    ) as folder:
        said = Path(folder) / "stderr"
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        if at_once > 1:
            share = max(1, (os.cpu_count() or 1) // at_once)
            environment.setdefault("OMP_NUM_THREADS", str(share))
            environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(4, share)))
        with said.open("wb") as errors:
            child = processes.start(command, environment, errors)
        until = time.monotonic() + limit
        try:
            outcome = _answer(child, until)
            if outcome is not None and outcome.failure is None:
                with processes.alone(child):
                    assert child.stdin is not None
                    child.stdin.write(b"go\n")
                    child.stdin.flush()
                    outcome = _answer(child, time.monotonic() + limit)
        except TimeoutError:
            outcome = Outcome(failure=f"it took over {limit:.0f} seconds")
        finally:
            processes.end(child)
        return outcome or Outcome(failure=_last_words(said, child.returncode))


def _answer(child: Process, until: float) -> Outcome | None:
    """The next line; None if the process ended without one. Raises TimeoutError."""
    assert child.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(child.stdout.fileno(), 1 << 16)
        if not part:
            return None
        line += part
    return msgspec.json.decode(line, type=Outcome)


def _last_words(said: Path, status: int) -> str:
    lines = [x.strip() for x in said.read_text(errors="replace").splitlines() if x.strip()]
    return f"{lines[-1][:300] if lines else 'it ended'} (exit status {status})"
