"""Outcomes in the form of the measurement log (bench/results/README.md), which is rewritten after each of them."""

import datetime
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from monotile.compare.jobs import ARRANGED, OURS, PROFILE, Job, Network, Outcome


class Timing(msgspec.Struct, frozen=True):
    """Microseconds."""

    call: float
    graph: float | None
    compile: float | None
    again: float | None
    samples: int
    kernels: int | None


class Floor(msgspec.Struct, frozen=True):
    """bytes, operations: the minimum of a call. time: microseconds that they take at the target's peak rates."""

    bytes: int
    operations: int
    time: float


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """arranged: Monotile with `Options(arrange_parameters=True)`. absent: rivals without a time, and the reason."""

    model: str
    arguments: dict[str, Any]
    dtype: str
    ours: Timing | None
    arranged: Timing | None = None
    floor: Floor | None = None
    rivals: dict[str, Timing]
    errors: dict[str, float]
    absent: dict[str, str] = {}

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest rival and its time."""
        times = {name: min(t.call, t.graph or t.call) for name, t in self.rivals.items()}
        name = min(times, key=lambda n: times[n], default=None)
        return None if name is None else (name, times[name])

    @property
    def own(self) -> float | None:
        return None if self.ours is None else min(self.ours.call, self.ours.graph or self.ours.call)


class Log(msgspec.Struct, kw_only=True):
    """Filled by `add`."""

    date: str
    device: str
    versions: dict[str, str]
    commit: str
    notes: str
    entries: list[Entry]

    @staticmethod
    def new(commit: str | None, notes: str) -> "Log":
        return Log(
            date=datetime.date.today().isoformat(),
            device="",
            versions={},
            commit=commit or _commit(),
            notes=notes,
            entries=[],
        )

    def add(self, job: Job, outcome: Outcome) -> Entry:
        """Adds the outcome; the entry of the job's network."""
        self.device = self.device or outcome.device
        self.versions |= outcome.versions
        if "cuda" in outcome.versions and "driver" not in self.versions:
            self.versions["driver"] = _driver()
        fresh = _entry(job.network)
        key = (fresh.model, fresh.dtype, fresh.arguments)
        found = [k for k, e in enumerate(self.entries) if (e.model, e.dtype, e.arguments) == key]
        if not found:
            self.entries.append(fresh)
        place = found[0] if found else -1
        self.entries[place] = _with(self.entries[place], job, outcome)
        return self.entries[place]

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def read(path: Path) -> Log:
    return msgspec.json.decode(path.read_bytes(), type=Log)


def _entry(network: Network) -> Entry:
    return Entry(
        model=network.name,
        arguments=network.arguments,
        dtype=network.dtype or "",
        ours=None,
        rivals={},
        errors={},
    )


def _with(entry: Entry, job: Job, outcome: Outcome) -> Entry:
    if outcome.call is None or outcome.error is None:
        if outcome.failure is None:  # a profile has no time
            return entry
        why = outcome.failure if outcome.absent else f"failed: {outcome.failure}"
        return msgspec.structs.replace(entry, absent={**entry.absent, job.name: why})
    timing = Timing(
        call=outcome.call * 1e6,
        graph=_micro(outcome.graph),
        compile=_micro(outcome.compile),
        again=_micro(outcome.again),
        samples=outcome.samples,
        kernels=outcome.kernels,
    )
    if job.way == OURS and job.options.arrange_parameters:
        errors = {**entry.errors, ARRANGED: outcome.error}
        return msgspec.structs.replace(entry, arranged=timing, errors=errors)
    if job.way == OURS:
        b = outcome.bound
        floor = None if b is None else Floor(b.moved, b.operations, b.seconds * 1e6)
        errors = {**entry.errors, "ours": outcome.error}
        return msgspec.structs.replace(entry, ours=timing, floor=floor, errors=errors)
    assert job.way != PROFILE
    rivals = {**entry.rivals, job.name: timing}
    return msgspec.structs.replace(
        entry, rivals=rivals, errors={**entry.errors, job.name: outcome.error}
    )


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _commit() -> str:
    return _output("git", "describe", "--always", "--dirty=+") or "unknown"


def _driver() -> str:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip().partition("\n")[0]
