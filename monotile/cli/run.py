"""monotile run MODEL"""

import sys
import time

import click

from monotile.cli.options import Given, compiling, given_files, named_model
from monotile.cli.report import summary
from monotile.compile import compile
from monotile.config import Options
from monotile.runtime.measure import duration, measure
from monotile.runtime.reference import (
    distance,
    eager,
    eager_float64,
    random_inputs,
    to_device,
    tolerance,
)
from monotile.targets.detect import device_of


@click.command()
@compiling
@given_files
@click.option("--seconds", default=1.0, show_default=True, help="Time to spend on each side.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random inputs.")
def command(
    spec: str,
    dtype: str | None,
    target: str,
    options: Options,
    given: Given,
    seconds: float,
    seed: int,
) -> None:
    """Compile MODEL, run it on fresh random inputs, check it against PyTorch in float64, and time both."""
    device = device_of(target, options)
    model, call = to_device(*named_model(spec, dtype), device)
    start = time.perf_counter()
    fast = compile(
        model, *call, target=target, options=options, plan=given.plan, choices=given.choices
    )
    click.echo(summary(fast, time.perf_counter() - start))

    args, kwargs = inputs = random_inputs(call, seed)
    plain = eager(model, inputs)
    exact = eager_float64(model, inputs)
    judge = plain if exact is None else exact
    ours, theirs = distance(fast(*args, **kwargs), judge), distance(plain, judge)
    name = "PyTorch" if exact is None else "PyTorch in float64"
    click.echo(f"error        {ours.relative:.2e} of the largest value of {name}")
    if exact is not None:
        click.echo(f"  PyTorch's  {theirs.relative:.2e}")

    own = measure(lambda: fast(*args, **kwargs), device, seconds)
    rival = measure(lambda: eager(model, inputs), device, seconds)
    click.echo(f"time         {duration(own.median)} per call (median of {own.samples})")
    click.echo(
        f"  PyTorch's  {duration(rival.median)} ({rival.median / own.median:.2f} times as long)"
    )
    allowed = max(4 * theirs.relative, tolerance(model, call))
    if not ours.equal or ours.relative > allowed:
        click.echo(f"WRONG: the error exceeds the tolerance {allowed:.1e}", err=True)
        sys.exit(1)
