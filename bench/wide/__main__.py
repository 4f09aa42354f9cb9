"""The wide table, in pieces of a given time: `make bench ARGS=--wide`.

    python -m bench.wide [--seconds S] [--jobs N] [--dtype D ...] [--batch B ...] [--domain D ...] [--only NAME ...] [--log FILE]

What the log has is not run again without --again; the log is rewritten after every network. At the end the command says what is left.
"""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from bench.wide import report
from bench.wide.case import Answer
from bench.wide.networks import DOMAINS, NETWORKS
from bench.wide.registry import DTYPES
from bench.wide.runner import run
from monotile.compare.jobs import Network
from monotile.compare.results import Entry, Log, read
from monotile.compare.run import Settings
from monotile.config import Options

FOLDER = Path(__file__).parents[1] / "results" / "wide"
BATCHES = (1, 8, 32)
Key = tuple[str, str, int]


def chosen(names: Sequence[str], domains: Sequence[str], dtypes: Sequence[str], batches: Sequence[int]) -> list[Network]:  # fmt: skip
    """The networks at these dtypes and batches, all of a network together. Empty: all."""
    return [
        Network(name, name, dtype, {"batch": batch}, images=n.images)
        for name, n in NETWORKS.items()
        if (not names or name in names) and (not domains or n.domain in domains)
        for dtype in n.dtypes
        if not dtypes or dtype in dtypes
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


def device_name() -> str:
    return torch.cuda.get_device_name().split()[1].lower() if torch.cuda.is_available() else "cpu"


@click.command()
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(NETWORKS)),
    metavar="NAME",
    help="A network; may be given several times.",
)
@click.option("--domain", multiple=True, type=click.Choice(DOMAINS))
@click.option("--dtype", multiple=True, type=click.Choice(DTYPES))
@click.option(
    "--batch",
    multiple=True,
    type=int,
    help="1, 8 and 32 if none is given; recommendation has 128 rows for each.",
)
@click.option("--seconds", default=float("inf"), help="For this piece of the table.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes at a time.")
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
    jobs: int,
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
    """Time the networks of the wide table beside eager and torch.compile."""
    path = path or FOLDER / f"{datetime.date.today().isoformat()}-{device_name()}.json"
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
        settings = Settings(
            target=target,
            options=Options(cache=False, arrange_parameters=True),
            at_once=jobs,
            limit=limit,
            seconds=budget,
        )
        todo = run(todo, settings, seconds, told)
    if show:
        click.echo(report.page(log, path.parent))
        report.chart(log, path.with_suffix(".png"))
    click.echo(f"{len(todo)} of {len(here)} left: {report.listed(todo)}")


if __name__ == "__main__":
    main()
