"""Compares networks with their rivals: which jobs run, and which files are written."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from monotile.compare import pool, report
from monotile.compare.forms import forms_of
from monotile.compare.jobs import OURS, PROFILE, Job, Network, Outcome
from monotile.compare.results import Log
from monotile.compare.rivals import RIVALS, missing
from monotile.config import Options
from monotile.errors import InputError
from monotile.runtime.measure import duration

EVERY = tuple(RIVALS)  # slow ones included
USUAL = tuple(name for name, rival in RIVALS.items() if rival.usual)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """at_once: processes that prepare at a time. limit: seconds for one process. seconds: time to spend on timing each.
    folder: for all files. commit: of Monotile, if git is not available. options: with `arrange_parameters`, Monotile is
    also timed without it."""

    target: str = "auto"
    options: Options = Options()
    at_once: int = 1
    limit: float = 900.0
    seconds: float = 0.5
    profile: bool = False
    folder: Path | None = None
    commit: str | None = None
    notes: str = ""


def jobs_of(network: Network, rivals: Sequence[str], settings: Settings) -> list[Job]:
    """Slow ones first. Raises InputError for an unknown rival."""
    unknown = [name for name in rivals if name not in EVERY]
    if unknown:
        raise InputError(f"unknown rival {', '.join(unknown)}: choose from {', '.join(EVERY)}")
    ways = [
        (name, form)
        for name, rival in RIVALS.items()
        for form in forms_of(network)
        if name in rivals and form in rival.forms
    ]
    profile = [(PROFILE, "module")] if settings.profile and settings.folder else []
    folder = str(settings.folder) if settings.folder else None
    plain = msgspec.structs.replace(settings.options, arrange_parameters=False)
    jobs = [
        Job(
            network, way, form, target=settings.target, options=plain,
            seconds=settings.seconds, folder=folder,
        )
        for way, form in [(OURS, "module"), *profile, *ways]
    ]  # fmt: skip
    if settings.options.arrange_parameters:
        jobs.insert(1, msgspec.structs.replace(jobs[0], options=settings.options))
    return jobs


def compare(jobs: Sequence[Job], settings: Settings, console: Console, stem: str) -> Log:
    """Runs the jobs. Prints a line for each and a table for each network; writes the log after each, the pictures at the end."""
    log = Log.new(settings.commit, settings.notes)
    folder = settings.folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)

    def told(job: Job, outcome: Outcome) -> None:
        log.add(job, outcome)
        said = f"{job.network}: {job.name}: {_words(outcome)}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
        if folder is not None:
            log.write(folder / f"{stem}.json")

    there: list[Job] = []
    for job in jobs:
        if why := missing(job):
            told(job, Outcome(failure=why, absent=True))
        else:
            there.append(job)
    pool.run(there, at_once=settings.at_once, limit=settings.limit, report=told)
    show(log, console)
    if folder is not None:
        draw(log, folder, stem, console)
    return log


def show(log: Log, console: Console) -> None:
    """Prints a table for each network."""
    for entry in log.entries:
        console.print(report.table(entry))
        for line in report.notes(entry):
            console.print(f"  {line}", markup=False, highlight=False)


def draw(log: Log, folder: Path, stem: str, console: Console) -> None:
    """Writes the log as Markdown and as a picture."""
    (folder / f"{stem}.md").write_text(report.markdown(log))
    try:
        report.chart(log, folder / f"{stem}.png")
    except ImportError:
        missing = "no pictures: matplotlib is not installed (pip install 'monotile[bench]')"
        console.print(missing, markup=False)


def _words(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return f"{'absent' if outcome.absent else 'FAILED'}: {outcome.failure}"
    if outcome.call is None:
        return "done"
    graph = f", {duration(outcome.graph)} in a CUDA graph" if outcome.graph is not None else ""
    return f"{duration(outcome.call)} per call{graph}, error {outcome.error:.1e} {outcome.note}".rstrip()
