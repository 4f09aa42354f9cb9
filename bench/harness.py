"""What the benchmarks share that time Monotile beside rivals in one process: rivals, timings, the log that is rewritten after every case."""

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import click
import msgspec
import torch

from monotile.compare.results import Entry, Log, Timing
from monotile.compare.worker import about_device
from monotile.runtime.measure import Times, graphed, measure

Run = Callable[..., Any]


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a sum over 2 GB reads."""
    x = torch.empty(1 << 28, dtype=torch.int64, device=device)
    return x.nbytes / measure(x.sum, device, 0.3).median


def rival(name: str, module: Run, *, dynamic: bool | None = None) -> Run:
    """`module` as "eager", or by `torch.compile` in the mode that is named: "compile", "max-autotune"."""
    if name == "eager":
        return module
    mode = {"max-autotune": "max-autotune-no-cudagraphs"}.get(name)
    return torch.compile(module, mode=mode, dynamic=dynamic)


def timing(found: Times, graph: Times | None, compile_seconds: float | None = None) -> Timing:
    """In microseconds. graph: of the same in a CUDA graph, where it can be."""
    took = None if compile_seconds is None else compile_seconds * 1e6
    in_graph = None if graph is None else graph.median * 1e6
    return Timing(found.median * 1e6, in_graph, took, None, found.samples, None)


def graph_timing(run: Run, device: torch.device, compile_seconds: float | None = None) -> Timing:
    """Of `run` in a CUDA graph alone."""
    found = measure(graphed(run), device, 0.5, 20)
    return timing(found, found, compile_seconds)


def timed(make: Callable[[], Run]) -> tuple[Run, float]:
    """What `make` gives, and the seconds that it took."""
    began = time.perf_counter()
    made = make()
    return made, time.perf_counter() - began


def case_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command line of a benchmark: which cases, beside which rivals, and where the log goes."""
    for option in (
        click.option("--commit", help="Of this checkout, where git does not say it."),
        click.option("--out", type=click.Path(path_type=Path), help="The log, rewritten after every case."),
        click.option("--rival", "rivals", multiple=True, default=("eager", "compile")),
        click.argument("cases", nargs=-1),
    ):  # fmt: skip
        command = option(command)
    return command


def command(
    names: Collection[str],
    notes: str,
    entries: Callable[
        [tuple[str, ...], tuple[str, ...], torch.device, float],
        Iterable[tuple[str, Callable[[], Entry]]],
    ],
) -> click.Command:
    """The command that times some of `names`, or all. entries: of given ones, beside given rivals, on a device of which so many bytes are read a second."""

    @click.command(help="Time CASES, or all.")
    @case_options
    def main(
        cases: tuple[str, ...], rivals: tuple[str, ...], out: Path | None, commit: str | None
    ) -> None:
        device = torch.device("cuda")
        rate = bandwidth(device)
        found = entries(cases or tuple(names), rivals, device, rate)
        log_cases(found, device, f"device memory: {rate / 1e12:.2f} TB/s; {notes}", out, commit)

    return main


def log_cases(
    cases: Iterable[tuple[str, Callable[[], Entry]]],
    device: torch.device,
    notes: str,
    out: Path | None,
    commit: str | None,
) -> None:
    """A line and an entry of the log for each case, the log written to `out` after each. One that fails does not end the others."""
    log = Log.new(commit or "unknown", notes)
    about = about_device(device)
    log.device, log.versions = about["device"], about["versions"]
    click.echo(notes)
    for name, run in cases:
        try:
            e = run()
        except Exception as reason:  # the others are still of use
            click.echo(f"{name}: {type(reason).__name__}: {str(reason)[:300]}")
            continue
        log.entries.append(e)
        click.echo(f"{name}: {line(e)}")
        if out is not None:
            out.write_bytes(msgspec.json.format(msgspec.json.encode(log), indent=1))
        if device.type == "cuda":
            torch.cuda.empty_cache()


def line(e: Entry) -> str:
    """The times of an entry as text, in microseconds."""
    assert e.own is not None
    parts = [f"ours {e.own:.1f}"]
    parts += [f"{n} {min(t.call, t.graph or t.call):.1f}" for n, t in e.rivals.items()]
    if e.floor is not None:
        parts.append(f"floor {e.floor.time:.1f} ({e.own / e.floor.time:.2f} x)")
    if e.best is not None:
        parts.append(f"{e.best[1] / e.own:.2f} x as fast as {e.best[0]}")
    errors = ", ".join(f"{n} {x:.1e}" for n, x in e.errors.items())
    return "  ".join((*parts, f"errors: {errors}"))
