"""The profile of one call: when each worker ran what, recorded by the kernel itself (`Options(profile=True)`)."""

import json
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from monotile.errors import InputError
from monotile.plan.nodes import Plan
from monotile.plan.records import (
    HEADER_WORDS,
    KINDS,
    RECORD_WORDS,
    STAGE_BIT,
    TASK_BIT,
    Kind,
    capacity,
    recorded,
)
from monotile.runtime.timeline import Bar, draw


class Record(msgspec.Struct, frozen=True):
    """stage: its name in the Plan. iteration: of each enclosing loop, outermost first. task: 0 if kind is not "task".
    start, end: seconds since the first record of the call began."""

    stage: str
    kind: Kind
    iteration: tuple[int, ...]
    worker: int
    task: int
    start: float
    end: float

    @property
    def label(self) -> str:
        return self.stage if self.kind == "task" else f"{self.kind} {self.stage}"


class StageTimes(msgspec.Struct, frozen=True):
    """Times of one stage, or of filling its pinned weights ("fill ..."); each figure is a mean over its iterations.

    rounds: iterations. tasks: per iteration. mean, slowest: seconds that a worker with tasks spent on them. wait: shortest
    wait of any worker before the stage, i.e. the cost of the hand-off itself. share: of the time of all stages, by slowest + wait.
    """

    stage: str
    rounds: int
    tasks: int
    mean: float
    slowest: float
    wait: float
    share: float


class Profile(msgspec.Struct, frozen=True):
    """records: by worker, each worker's in order. dropped: number of records that did not fit in memory."""

    records: tuple[Record, ...]
    workers: int
    dropped: int

    @property
    def seconds(self) -> float:
        """Seconds from the first start to the last end."""
        return max((r.end for r in self.records), default=0.0)

    def stages(self) -> tuple[StageTimes, ...]:
        """Stages in the order in which they first began."""
        rounds: dict[str, dict[tuple[int, ...], list[Record]]] = {}
        for r in sorted(self.records, key=lambda r: r.start):
            name = r.label if r.kind == "fill" else r.stage
            rounds.setdefault(name, {}).setdefault(r.iteration, []).append(r)
        found = [_times(stage, list(of.values())) for stage, of in rounds.items()]
        whole = sum(s.rounds * (s.slowest + s.wait) for s in found) or 1.0
        return tuple(
            msgspec.structs.replace(s, share=s.rounds * (s.slowest + s.wait) / whole) for s in found
        )

    def table(self) -> str:
        """One line per stage; times in microseconds."""
        stages = self.stages()
        width = max((len(s.stage) for s in stages), default=5)
        head = ("rounds", "tasks", "mean", "slowest", "wait", "share")
        lines = [f"{'stage':{width}s}" + "".join(f" {h:>10s}" for h in head)]
        for s in stages:
            cells = [f" {x * 1e6:10.2f}" for x in (s.mean, s.slowest, s.wait)]
            lines.append(
                f"{s.stage:{width}s} {s.rounds:10d} {s.tasks:10d}{''.join(cells)} {s.share:10.1%}"
            )
        lines.append(f"{self.seconds * 1e6:.1f} us in all, {self.workers} workers")
        if self.dropped:
            lines.append(f"{self.dropped} records did not fit in memory")
        return "\n".join(lines)

    def trace(self) -> str:
        """A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: one row per worker."""
        names = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": w, "args": {"name": f"worker {w}"}}
            for w in range(self.workers)
        ]
        events = [
            {
                "ph": "X",
                "name": r.label,
                "cat": r.kind,
                "pid": 0,
                "tid": r.worker,
                "ts": r.start * 1e6,
                "dur": (r.end - r.start) * 1e6,
                "args": {"task": r.task, "iteration": list(r.iteration)},
            }
            for r in self.records
        ]
        return json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ns"})

    def timeline(self, path: str | Path) -> None:
        """Draws the profile: time to the right, a row per worker, a colour per stage. Needs matplotlib
        (`pip install monotile[bench]`)."""
        bars = [Bar(r.worker, r.start, r.end, r.stage, r.kind == "wait") for r in self.records]
        try:
            draw(bars, self.workers, Path(path))
        except ImportError as error:
            raise InputError(
                "drawing a timeline needs matplotlib: pip install 'monotile[bench]'"
            ) from error


def _times(stage: str, rounds: list[list[Record]]) -> StageTimes:
    mean = slowest = wait = 0.0
    tasks = 0
    for records in rounds:
        spent: dict[int, float] = {}
        for r in records:
            if r.kind != "wait":
                spent[r.worker] = spent.get(r.worker, 0.0) + r.end - r.start
        tasks = max(tasks, sum(r.kind == "task" for r in records))
        mean += sum(spent.values()) / max(len(spent), 1)
        slowest += max(spent.values(), default=0.0)
        wait += min((r.end - r.start for r in records if r.kind == "wait"), default=0.0)
    n = len(rounds)
    return StageTimes(stage, n, tasks, mean / n, slowest / n, wait / n, 0.0)


def decode(plan: Plan, memory: NDArray[np.uint64]) -> Profile:
    """Decodes the memory that a profiled kernel of the Plan wrote."""
    room, workers = capacity(plan), plan.launch.workers
    of_worker = memory.reshape(workers, HEADER_WORDS + RECORD_WORDS * room)
    header = of_worker[:, :HEADER_WORDS].astype(np.int64)
    rows = of_worker[:, HEADER_WORDS:].reshape(workers, room, RECORD_WORDS).astype(np.int64)
    counts = np.minimum(header[:, 0], room)
    clock, nanoseconds = header[:, 1], header[:, 2]
    # Nanoseconds since the first worker began, as float64. Clocks have different origins and rates: under load
    # those of the H100's multiprocessors drift apart by more than 1 %.
    cycles = np.maximum(header[:, 3] - clock, 1)
    rate = ((header[:, 4] - nanoseconds) / cycles)[:, None, None]
    begun = (nanoseconds - nanoseconds.min())[:, None, None]
    times = (rows[:, :, 2:] - clock[:, None, None]) * rate + begun
    first = min((float(times[w, 0, 0]) for w in range(workers) if counts[w]), default=0.0)
    seconds = ((times - first) * 1e-9).tolist()
    stages = [(r.stage.name, r.extents) for r in recorded(plan)]
    out: list[Record] = []
    for w in range(workers):
        count = int(counts[w])
        for (what, iteration, *_), (start, end) in zip(
            rows[w, :count].tolist(), seconds[w][:count], strict=True
        ):
            name, extents = stages[(what >> STAGE_BIT) & 0xFFFFFF]
            kind = KINDS[what & 0xFF]
            place = tuple(int(i) for i in np.unravel_index(iteration, extents)) if extents else ()
            out.append(Record(name, kind, place, w, what >> TASK_BIT, start, end))
    return Profile(tuple(out), workers, int((header[:, 0] - counts).sum()))
