"""Models of the zoo as several checkouts compile them, timed in turns on one GPU: whether a change pays.

python -m bench.beside MODEL[:DTYPE[:KEY=VALUE,...]] ... [--with FOLDER ...] [--channels-last] [--out FOLDER]

Every checkout compiles every model in a process of its own, all at a time; then they are timed in turns, one at a time, so that
the clock's drift meets all alike. An answer is compared with float64 first. Stages are timed from inside a kernel of their own.
"""

import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch

import monotile
from bench.networks import make
from bench.zoo import Spec
from monotile.compare.forms import FORMS
from monotile.compare.jobs import Network
from monotile.runtime.accuracy import error, exact
from monotile.runtime.measure import graphed, measure
from monotile.runtime.reference import random_inputs, to_device

HERE = Path(__file__).resolve().parent.parent
TURNS = 4


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--with", "others", multiple=True, type=click.Path(path_type=Path, exists=True), help="Another checkout.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Where the stages' times go, a file a model and checkout.")  # fmt: skip
@click.option("--jobs", default=8, show_default=True, help="Processes that compile at a time.")
@click.option("--channels-last", "last", is_flag=True, help="Of images and of the models.")
@click.option("--one", hidden=True, help="The lock of one process's turns.")
def main(
    models: tuple[str, ...],
    others: tuple[Path, ...],
    out: Path | None,
    jobs: int,
    last: bool,
    one: str | None,
) -> None:
    """Time MODELS (of `bench.zoo`) as this checkout and others compile them."""
    if one is not None:
        click.echo(json.dumps(_one(Spec.parse(models[0]), one, out, last)))
        return
    places = [HERE, *(p.resolve() for p in others)]
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(jobs) as pool:
        work = {
            pool.submit(_asked, model, place, lock.name, out, last): f"{model:40s} {place.name:12s}"
            for model in models
            for place in places
        }
        for answer in as_completed(work):  # what is known is said, should the rest be cut off
            click.echo(f"{work[answer]} {answer.result()}")


def _asked(model: str, place: Path, lock: str, out: Path | None, last: bool) -> str:
    """What a process says that compiles with the checkout at `place`, by its own copy of this script: names change."""
    folder = ["--out", str(out / place.name)] if out else []
    command = [
        sys.executable,
        "-P",
        str(place / "bench" / "beside.py"),
        model,
        "--one",
        lock,
        *folder,
    ]
    command += ["--channels-last"] if last else []
    path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, cwd=place, capture_output=True, text=True
    )
    if run.returncode:
        return "failed: " + (run.stderr.strip().splitlines() or ["?"])[-1]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return "  ".join(f"{k} {v}" for k, v in found.items())


def _one(spec: Spec, lock: str, out: Path | None, last: bool) -> dict[str, str]:
    made, call = to_device(*make(str(spec)), torch.device("cuda"))
    assert isinstance(made, torch.nn.Module)
    form = FORMS["channels-last" if last else "module"]
    model, (args, kwargs) = form(Network(spec.name, spec.name), made, random_inputs(call, 1))
    began = time.perf_counter()
    fast = monotile.compile(model, args, kwargs=kwargs)
    took = time.perf_counter() - began
    seen = (
        monotile.compile(model, args, kwargs=kwargs, options=monotile.Options(profile=True))
        if out
        else None
    )
    with _turn(lock):
        right = exact(model, (args, kwargs))
        with torch.no_grad():
            theirs = error(model(*args, **kwargs), right)
        ours = error(fast(*args, **kwargs), right)
        replay = graphed(lambda: fast(*args, **kwargs))
        measure(replay, torch.device("cuda"), 0.1)
    times: list[float] = []
    for _ in range(TURNS):
        with _turn(lock):
            times.append(measure(replay, torch.device("cuda"), 0.15, 20).median * 1e6)
    if seen is not None and out is not None:
        with _turn(lock):
            for _ in range(20):
                seen(*args, **kwargs)
            table = seen.profile(*args, **kwargs).table()
        out.mkdir(parents=True, exist_ok=True)
        name = str(spec).replace(":", "-").replace(",", "-").replace("=", "")
        (out / f"{name}.txt").write_text(table + "\n")
    return {
        "us": f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})",
        "error": f"{ours:.2e}, eager {theirs:.2e}",
        "compile": f"{took:.1f} s",
    }


@contextmanager
def _turn(lock: str) -> Generator[None]:
    """The GPU for this process alone."""
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
            torch.cuda.synchronize()
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


if __name__ == "__main__":
    main()
