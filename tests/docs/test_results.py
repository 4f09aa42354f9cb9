"""The measurement log has the form that bench/results/README.md says."""

import datetime
from pathlib import Path

import msgspec

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


class Timing(msgspec.Struct, forbid_unknown_fields=True):
    call: float
    graph: float | None
    compile: float | None
    again: float | None
    samples: int
    kernels: int | None


class Floor(msgspec.Struct, forbid_unknown_fields=True):
    bytes: int
    operations: int
    time: float


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    arguments: dict[str, int | float | str | bool]
    dtype: str
    ours: Timing | None
    rivals: dict[str, Timing]
    errors: dict[str, float]
    arranged: Timing | None = None
    floor: Floor | None = None
    absent: dict[str, str] = {}


class Log(msgspec.Struct, forbid_unknown_fields=True):
    date: datetime.date
    device: str
    versions: dict[str, str]
    commit: str
    notes: str
    entries: list[Entry]


def check(text: str) -> None:
    log = msgspec.json.decode(text, type=Log)
    assert {"monotile", "torch", "python"} <= log.versions.keys()
    for e in log.entries:
        timed = {"ours", *e.rivals} if e.ours else {*e.rivals}
        timed |= {"parameters arranged"} if e.arranged else set()
        assert timed == e.errors.keys(), f"{e.model}: a time without its error"


def test_the_example() -> None:
    text = (RESULTS / "README.md").read_text()
    check(text.partition("```json\n")[2].partition("```")[0])


def test_every_log() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        check(path.read_text())
