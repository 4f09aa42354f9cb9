"""monotile bench MODEL"""

import datetime
import sys
from pathlib import Path

import click
from rich.console import Console

from monotile.cli.options import compiling
from monotile.compare.jobs import Network
from monotile.compare.run import EVERY, USUAL, Settings, compare, jobs_of
from monotile.config import Options


def _value(text: str) -> tuple[str, int | float | bool | str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set expects NAME=VALUE, got {text}")
    if value in ("True", "False"):
        return name, value == "True"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


@click.command()
@compiling
@click.option("--rival", "rivals", multiple=True, help=f"One of {', '.join(EVERY)}; may be given several times. Default: all but max-autotune, which takes minutes.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="All rivals.")
@click.option("--batch", type=int, help="Short for --set batch=N.")
@click.option("--set", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument of the model's function.")  # fmt: skip
@click.option("--plain", metavar="MODULE:FUNCTION", help="function(model) returns the same network written plainly; rivals are timed on it too.")  # fmt: skip
@click.option("--xla", metavar="MODULE:FUNCTION", help="function(model, args, kwargs) returns the same network in JAX.")  # fmt: skip
@click.option("--channels-last", "images", is_flag=True, help="Also time rivals in channels-last memory format.")  # fmt: skip
@click.option("--profile", is_flag=True, help="Also record a profile inside the kernel.")
@click.option("--seconds", default=0.5, show_default=True, help="Time to spend on each.")
@click.option("--jobs", default=1, show_default=True, help="Processes that compile at a time; timing always runs alone.")  # fmt: skip
@click.option(
    "--limit", default=900.0, show_default=True, help="Time limit of a process, in seconds."
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the log, the pictures and the trace.")  # fmt: skip
def command(
    spec: str,
    dtype: str | None,
    target: str,
    options: Options,
    rivals: tuple[str, ...],
    every: bool,
    batch: int | None,
    arguments: tuple[str, ...],
    plain: str | None,
    xla: str | None,
    images: bool,
    profile: bool,
    seconds: float,
    jobs: int,
    limit: float,
    out: Path | None,
) -> None:
    """Time MODEL beside PyTorch, torch.compile, JAX, OpenVINO and ONNX Runtime, each checked against float64 in the same run.

    Each runs in a process of its own. A rival that is not installed is reported as absent, one that fails with the reason.
    """
    if profile and out is None:
        raise click.UsageError("--profile writes files: give a folder with --out")
    given = dict(map(_value, arguments)) | ({} if batch is None else {"batch": batch})
    name = spec.removesuffix(":make").rpartition(":")[2]
    network = Network(name, spec, dtype, given, plain, xla, images)
    settings = Settings(target=target, options=options, at_once=jobs, limit=limit, seconds=seconds, profile=profile, folder=out)  # fmt: skip
    chosen = EVERY if every else rivals or USUAL
    stem = f"{datetime.date.today().isoformat()}-{''.join(c if c.isalnum() else '_' for c in name)}"
    log = compare(jobs_of(network, chosen, settings), settings, Console(), stem)
    if any(e.ours is None for e in log.entries):
        sys.exit(1)
