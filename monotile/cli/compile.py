"""monotile compile MODEL [-o FILE]"""

import time

import click

from monotile.cli.options import Given, compiling, given_files, named_model
from monotile.cli.report import summary
from monotile.compile import compile
from monotile.config import Options
from monotile.runtime.reference import to_device
from monotile.targets.detect import device_of


@click.command()
@compiling
@given_files
@click.option(
    "-o", "--output", metavar="FILE", help="Save the compiled model, for monotile.load(FILE)."
)
def command(
    spec: str,
    dtype: str | None,
    target: str,
    options: Options,
    given: Given,
    output: str | None,
) -> None:
    """Compile MODEL and print a summary."""
    model, call = named_model(spec, dtype)
    model, (args, kwargs) = to_device(model, call, device_of(target, options))
    start = time.perf_counter()
    fast = compile(
        model,
        args,
        kwargs,
        target=target,
        options=options,
        plan=given.plan,
        choices=given.choices,
    )
    click.echo(summary(fast, time.perf_counter() - start))
    if output is not None:
        fast.save(output)
        click.echo(f"saved        {output}")
