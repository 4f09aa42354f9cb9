"""python -m monotile.examples.demo: times PyTorch, torch.compile and Monotile side by side on one model.

Each runs in a process of its own with an empty cache, so that none affects the others; one that fails is reported as
absent, with the reason. Every answer is checked against PyTorch in float64. On a GPU each is timed per call and inside a
CUDA graph.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import monotile
from monotile.examples import EXAMPLES
from monotile.runtime.measure import duration, graphed, measure
from monotile.runtime.models import load_model
from monotile.runtime.reference import distance, eager, eager_float64, random_inputs, to_device

_NAMES = {
    "eager": "PyTorch",
    "inductor": "torch.compile",
    "autotune": "  max-autotune",
    "monotile": "Monotile",
}


class Outcome(msgspec.Struct, frozen=True):
    """Times in seconds. error: relative to the largest value of PyTorch's float64 answer. again: compiling a second time,
    with the disk cache. kernels: launches per call, if known."""

    compile: float
    again: float | None
    call: float
    graph: float | None
    error: float
    kernels: int | None


@click.command()
@click.option("--model", default="bert_base", show_default=True, help="Name of an example.")
@click.option("--dtype", help="Default: float16 on a GPU, float32 on a CPU.")
@click.option("--seconds", default=2.0, show_default=True, help="Time to spend on each.")
@click.option(
    "--autotune", is_flag=True, help="Also torch.compile with max-autotune, which takes minutes."
)
@click.option("--only", type=click.Choice(list(_NAMES)), hidden=True)
def main(model: str, dtype: str | None, seconds: float, autotune: bool, only: str | None) -> None:
    """Time PyTorch, torch.compile and Monotile on one model."""
    dtype = dtype or ("float16" if torch.cuda.is_available() else "float32")
    if only is not None:
        click.echo(msgspec.json.encode(_measured(only, model, dtype, seconds)).decode())
        return
    gpu = torch.cuda.is_available()
    console = Console()
    found: dict[str, Outcome | str] = {}
    for way, name in _NAMES.items():
        if way != "autotune" or autotune:
            with console.status(f"{name} ..."):
                found[way] = _in_a_process(way, model, dtype, seconds)
    console.print(f"{model}, {dtype}, on {torch.cuda.get_device_name() if gpu else 'the CPU'}")
    console.print(_table(found, gpu))
    for way, outcome in found.items():
        if isinstance(outcome, str):
            console.print(f"{_NAMES[way].strip()} is absent: {outcome}", markup=False)
    if isinstance(found["monotile"], str):
        sys.exit(1)


def _table(found: dict[str, Outcome | str], gpu: bool) -> Table:
    columns = ["", "compile", "again", "per call", *(["in a CUDA graph"] if gpu else []), "error"]
    table = Table(*columns, "kernels", box=SIMPLE)
    for way, outcome in found.items():
        if isinstance(outcome, Outcome):
            cells = [
                _NAMES[way],
                duration(outcome.compile) if outcome.compile else "",
                "" if outcome.again is None else duration(outcome.again),
                duration(outcome.call),
                *([duration(outcome.graph)] if outcome.graph is not None else []),
                f"{outcome.error:.1e}",
                "" if outcome.kernels is None else str(outcome.kernels),
            ]
            table.add_row(*cells)
    return table


def _in_a_process(way: str, model: str, dtype: str, seconds: float) -> Outcome | str:
    """What a separate process measured, or the reason for its failure."""
    command = [sys.executable, "-m", "monotile.examples.demo", "--only", way]
    command += ["--model", model, "--dtype", dtype, "--seconds", str(seconds)]
    with tempfile.TemporaryDirectory(prefix="monotile-demo-") as empty:
        caches = {"MONOTILE_CACHE_DIR": empty, "TORCHINDUCTOR_CACHE_DIR": empty}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=900,
                env=dict(os.environ) | caches,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "it took over 15 minutes"
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return said[-1] if said else f"exit status {done.returncode}"
    return msgspec.json.decode(lines[-1], type=Outcome)


def _measured(way: str, name: str, dtype: str, seconds: float) -> Outcome:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, call = to_device(*load_model(EXAMPLES[name], dtype), device)
    assert isinstance(model, torch.nn.Module)
    args, kwargs = given = random_inputs(call)
    exact = eager_float64(model, given)
    judge = eager(model, given) if exact is None else exact
    start = time.perf_counter()
    run, kernels = _ready(way, model, args, kwargs)
    result = run()
    took = time.perf_counter() - start
    again = None
    if way == "monotile":
        start = time.perf_counter()
        _ready(way, model, args, kwargs)
        again = time.perf_counter() - start
    return Outcome(
        compile=0.0 if way == "eager" else took,
        again=again,
        call=measure(run, device, seconds).median,
        graph=measure(graphed(run), device, seconds).median if device.type == "cuda" else None,
        error=distance(result, judge).relative,
        kernels=kernels,
    )


def _ready(
    way: str, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[[], Any], int | None]:
    """A callable of the prepared model, and its launches per call."""
    match way:
        case "monotile":
            fast = monotile.compile(model, args, kwargs)
            return lambda: fast(*args, **kwargs), fast.kernels
        case "inductor" | "autotune":
            mode = "default" if way == "inductor" else "max-autotune-no-cudagraphs"
            compiled = torch.compile(model, mode=mode)
            return _without_gradients(lambda: compiled(*args, **kwargs)), None
        case _:
            return _without_gradients(lambda: model(*args, **kwargs)), None


def _without_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


if __name__ == "__main__":
    main()
