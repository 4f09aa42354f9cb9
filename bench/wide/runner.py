"""Runs the cases of the wide table, each in a process of its own, for a given time. On a CPU each way to run a network is a case."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from bench.wide.case import Answer, Case
from monotile.compare.jobs import OURS, Job, Network, Outcome
from monotile.compare.rivals import missing
from monotile.compare.run import Settings, jobs_of
from monotile.targets.detect import device_of

RIVALS = {"cuda": ("eager", "compile"), "cpu": ("eager", "compile", "openvino", "onnxruntime")}
TURN = 60.0  # seconds on the GPU at a time
GUESS = 60.0  # seconds that a network takes, before one has been seen
Report = Callable[[Network, Sequence[Answer]], None]


def run(networks: Sequence[Network], settings: Settings, seconds: float, report: Report) -> list[Network]:  # fmt: skip
    """Calls `report` with all answers of a network as it ends, one at a time; the networks that are left after that many seconds.

    A network is not begun where half as much again as the mean so far would be too long, and given up when the time is over.
    """
    until = time.monotonic() + seconds
    waiting, left = deque(networks), set(map(str, networks))
    took: list[float] = []
    state = threading.Lock()

    def work(turn: Path) -> None:
        while True:
            with state:
                usual = statistics.fmean(took) if took else GUESS
                start = time.monotonic()
                if not waiting or start + 1.5 * usual > until:
                    return
                network = waiting.popleft()
            answers = answers_of(network, settings, until, turn)
            with state:
                if answers is not None:
                    took.append(time.monotonic() - start)
                    left.discard(str(network))
                    report(network, answers)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(settings.at_once) as pool:
        workers = [pool.submit(work, Path(folder) / "turn") for _ in range(settings.at_once)]
        try:
            for worker in workers:
                worker.result()
        finally:
            waiting.clear()  # an interrupted run ends what it has begun
    return [n for n in networks if str(n) in left]


def kind(settings: Settings) -> str:
    """What the networks run on: "cuda" or "cpu"."""
    return device_of(settings.target, settings.options).type


def answers_of(network: Network, settings: Settings, until: float, turn: Path) -> list[Answer] | None:  # fmt: skip
    """Of all the network's jobs; None if the time was over first."""
    on = kind(settings)
    jobs = [job for job in jobs_of(network, RIVALS[on], settings) if wanted(job)]
    found = [Answer(job, Outcome(failure=why, absent=True)) for job in jobs if (why := missing(job))]  # fmt: skip
    jobs = [job for job in jobs if not missing(job)]
    # Libraries have threads and copies of the weights of their own, which only the end of a process takes from the processors.
    for case in [[job] for job in jobs] if on == "cpu" else [jobs]:
        answers = in_a_process(case, settings, until, turn)
        if answers is None:
            return None
        found += answers
    return found


def in_a_process(jobs: list[Job], settings: Settings, until: float, turn: Path) -> list[Answer] | None:  # fmt: skip
    """Answers of a network's jobs, a failure where the process gave none; None if the time was over first."""
    limit = TURN if kind(settings) == "cuda" else settings.limit
    with tempfile.TemporaryDirectory(prefix="monotile-wide-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        answers, said = folder / "answers", folder / "said"
        case = msgspec.json.encode(Case(jobs, str(turn), limit, str(answers))).decode()
        command = [sys.executable, "-m", "bench.wide.case", case]
        start = time.monotonic()
        with said.open("wb") as words:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, env=environment(settings, name), process_group=0
            )  # fmt: skip
        failure = ""
        try:
            child.wait(max(0.0, min(settings.limit, until - start)))
        except subprocess.TimeoutExpired:
            if start + settings.limit > until:
                return None
            failure = f"it took over {settings.limit:.0f} seconds"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        found = msgspec.json.Decoder(Answer).decode_lines(answers.read_bytes()) if answers.exists() else []  # fmt: skip
        return complete(jobs, found, failure or last_words(said.read_text(errors="replace"), child.returncode))  # fmt: skip


def wanted(job: Job) -> bool:
    """torch.compile has images with their channels last only: it puts them so itself, at each call. Then the weights of ours may be arranged too, as
    all may on a CPU, where rivals have copies of their own."""
    if job.way == OURS:
        may = job.network.images or job.target == "cpu"
        return may or not job.options.arrange_parameters
    return not (job.network.images and job.way == "compile" and job.form == "module")


def complete(jobs: Sequence[Job], found: Sequence[Answer], failure: str) -> list[Answer]:
    """The answers, and the failure for each job that has none."""
    known = {answer.job.name for answer in found}
    missing = [Answer(job, Outcome(failure=failure)) for job in jobs if job.name not in known]
    return [*found, *missing]


def last_words(said: str, status: int) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any(line.startswith("Timeout (") for line in lines):  # of faulthandler
        return f"it took over {TURN:.0f} seconds on the GPU"
    return f"{lines[-1][:300] if lines else 'it ended'} (exit status {status})"


def environment(settings: Settings, folder: str) -> dict[str, str]:
    """Of a process: empty caches and, where it is not alone, its share of the processors, also for Triton's compiler."""
    own = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
    if settings.at_once == 1:
        return own
    share = str(max(1, (os.cpu_count() or 1) // settings.at_once))
    return {**own, "OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share}
