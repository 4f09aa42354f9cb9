"""monotile calibrate"""

import datetime
import math
import sys

import click
from rich.console import Console
from rich.table import Table

from monotile.config import Options
from monotile.targets.calibration import Machine, Reading, judge, keep, kept, path_of, reset
from monotile.targets.detect import kind_of


@click.command()
@click.option("--target", default="auto", show_default=True, help='"auto", "cpu" or "cuda": this machine\'s.')  # fmt: skip
@click.option("--show", is_flag=True, help="Print what was measured before; measure nothing.")
@click.option("--reset", "forget", is_flag=True, help="Remove what was measured before.")
@click.option("--dry-run", is_flag=True, help="Measure and print, and keep nothing.")
def command(target: str, show: bool, forget: bool, dry_run: bool) -> None:
    """Measure this machine's figures, which Monotile's cost models choose by, and keep them.

    From then on compilations for this machine use them. What was compiled before stays in the cache, under the old figures.
    """
    if show + forget + dry_run > 1:
        raise click.UsageError("--show, --reset and --dry-run exclude each other")
    options, kind = Options(), kind_of(target)
    machine = kind.machine()
    if show:
        _show(machine, options)
        return
    if forget:
        there = reset(machine, options)
        click.echo(f"removed {path_of(machine, options)}" if there else "there was nothing")
        return
    errors = Console(stderr=True)
    with errors.status("") as status:
        measured = kind.measure(options, lambda doing: status.update(f"measuring {doing}"))
    readings = judge(machine.shipped, measured)
    Console(soft_wrap=True).print(_table(machine, readings))
    if dry_run:
        return
    if all(r.why_not for r in readings):
        click.echo("nothing to keep: measure when nothing else runs", err=True)
        sys.exit(1)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        click.echo(f"kept in {keep(machine, readings, now, options)}")
    except OSError as error:
        raise click.ClickException(f"the figures cannot be kept: {error}") from error


def _show(machine: Machine, options: Options) -> None:
    found = kept(machine, options)
    if found is None:
        click.echo(f"nothing was measured on {machine.name}: {machine.source}")
        return
    readings = tuple(Reading(n, machine.shipped[n], v, "") for n, v in found.figures.items())
    Console(soft_wrap=True).print(_table(machine, readings))
    click.echo(f"measured {found.when}, kept in {path_of(machine, options)}")


def _table(machine: Machine, readings: tuple[Reading, ...]) -> Table:
    table = Table(title=machine.name, caption=machine.source, box=None)
    for name, right in (("figure", False), ("old", True), ("new", True), ("new / old", True), ("", False)):  # fmt: skip
        table.add_column(name, justify="right" if right else "left", no_wrap=bool(name))
    for r in readings:
        known = not math.isnan(r.old)
        note = f"[yellow]not used: {r.why_not}[/]" if r.why_not else ""
        table.add_row(
            r.name,
            f"{r.old:.4g}" if known else "",
            f"{r.new:.4g}",
            f"{r.new / r.old:.2f}" if known else "",
            note,
        )
    return table
