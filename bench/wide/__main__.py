"""The wide table, in pieces of a given time: `make bench ARGS=--wide`.

    python -m bench.wide [--target cpu] [--seconds S] [--jobs N] [--dtype D ...] [--batch B ...] [--domain D ...] [--only NAME ...] [--log FILE]

What the log has is not run again without --again; the log is rewritten after every network. At the end the command says what is left.
"""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import torch

from bench.wide import report
from bench.wide.case import Answer
from bench.wide.networks import ASKED, DOMAINS, NETWORKS
from bench.wide.registry import DTYPES, MORE
from bench.wide.runner import kind, run
from monotile.compare.jobs import Network
from monotile.compare.results import Entry, Log, read
from monotile.compare.run import Settings
from monotile.config import Options

FOLDER = Path(__file__).parents[1] / "results" / "wide"
BATCHES = (1, 8, 32)
USUAL = tuple(d for d in DOMAINS if d not in ASKED)
Key = tuple[str, str, int]


def chosen(names: Sequence[str], domains: Sequence[str], dtypes: Sequence[str], batches: Sequence[int]) -> list[Network]:  # fmt: skip
    """The networks at these dtypes and batches, all of a network together. Empty: all, but for those of other libraries."""
    asked = domains or (DOMAINS if names else USUAL)
    return [
        Network(name, name, dtype, {"batch": batch}, images=n.images)
        for name, n in NETWORKS.items()
        if (not names or name in names) and n.domain in asked
        for dtype in (*n.dtypes, *MORE)
        if dtype in (dtypes or n.dtypes)
        for batch in batches or BATCHES
    ]


def key_of(it: Network | Entry) -> Key:
    return it.name if isinstance(it, Network) else it.model, it.dtype or "", it.arguments["batch"]


def missing(networks: Sequence[Network], log: Log) -> list[Network]:
    """Those without an entry."""
    known = set(map(key_of, log.entries))
    return [n for n in networks if key_of(n) not in known]


def put(log: Log, network: Network, answers: Sequence[Answer]) -> Entry:
    """The network's entry, which takes the place of an older one."""
    log.entries = [e for e in log.entries if key_of(e) != key_of(network)]
    for answer in answers:
        log.add(answer.job, answer.outcome)
    return log.entries[-1]


def opened(path: Path, commit: str | None, notes: str) -> Log:
    """The log there, or a new one. A log of several commits names them all."""
    fresh = Log.new(commit, notes)
    if not path.exists():
        return fresh
    log = read(path)
    if fresh.commit not in log.commit.split(", "):
        log.commit += f", {fresh.commit}"
    return log


def device_name(settings: Settings) -> str:
    return "cpu" if kind(settings) == "cpu" else torch.cuda.get_device_name().split()[1].lower()


def settings_for(target: str, jobs: int | None, limit: float, seconds: float) -> Settings:
    """Raises UsageError for several processes on a CPU, where they would compile while one is timed."""
    found = Settings(target=target, options=Options(cache=False), limit=limit, seconds=seconds)
    # What lies as a call gives it is timed, too.
    both = Options(cache=False, arrange_parameters=True)
    found = msgspec.structs.replace(found, options=both)
    if kind(found) == "cuda":
        return msgspec.structs.replace(found, at_once=jobs or os.cpu_count() or 1)
    if jobs not in (None, 1):
        raise click.UsageError("on a CPU networks run one at a time")
    return found


@click.command()
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(NETWORKS)),
    metavar="NAME",
    help="A network; may be given several times.",
)
@click.option("--domain", multiple=True, type=click.Choice(DOMAINS))
@click.option("--dtype", multiple=True, type=click.Choice((*DTYPES, *MORE)))
@click.option(
    "--batch",
    multiple=True,
    type=int,
    help="1, 8 and 32 if none is given; recommendation has 128 rows for each.",
)
@click.option("--seconds", default=float("inf"), help="For this piece of the table.")
@click.option("--jobs", type=click.IntRange(1), help="Processes at a time: as many as processors; on a CPU one.")  # fmt: skip
@click.option("--limit", default=400.0, show_default=True, help="Seconds for a network.")
@click.option("--budget", default=0.15, show_default=True, help="Seconds to time each for.")
@click.option("--again", is_flag=True, help="Also what the log has.")
@click.option("--target", default="auto", show_default=True)
@click.option(
    "--log",
    "path",
    type=click.Path(path_type=Path),
    help="Read and rewritten; today's in bench/results/wide by default.",
)
@click.option("--commit", help="Of Monotile, where git cannot tell.")
@click.option("--notes", default="")
@click.option("--left", is_flag=True, help="Only say what is left.")
@click.option("--show", is_flag=True, help="Only print the log's tables and draw its picture.")
def main(
    only: tuple[str, ...],
    domain: tuple[str, ...],
    dtype: tuple[str, ...],
    batch: tuple[int, ...],
    seconds: float,
    jobs: int | None,
    limit: float,
    budget: float,
    again: bool,
    target: str,
    path: Path | None,
    commit: str | None,
    notes: str,
    left: bool,
    show: bool,
) -> None:
    """Time the networks of the wide table beside eager and torch.compile, on a CPU also beside OpenVINO and ONNX Runtime."""
    settings = settings_for(target, jobs, limit, budget)
    path = path or FOLDER / f"{datetime.date.today().isoformat()}-{device_name(settings)}.json"
    log = opened(path, commit, notes)
    networks = chosen(only, domain, dtype, batch)
    here = [n for n in networks if not NETWORKS[n.name].absent]
    todo = here if again else missing(here, log)
    for name in dict.fromkeys(n.name for n in networks if n not in here):
        click.echo(f"absent: {name}: {NETWORKS[name].library} is not installed")

    def told(network: Network, answers: Sequence[Answer]) -> None:
        entry = put(log, network, answers)
        path.parent.mkdir(parents=True, exist_ok=True)
        log.write(path)
        click.echo(report.line(entry))

    if not left and not show:
        todo = run(todo, settings, seconds, told)
    if show:
        click.echo(report.page(log, path.parent))
        report.chart(log, path.with_suffix(".png"))
    click.echo(f"{len(todo)} of {len(here)} left: {report.listed(todo)}")


if __name__ == "__main__":
    main()
