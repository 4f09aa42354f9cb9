"""monotile inspect MODEL|FILE"""

import click

from monotile.cli.options import compiling, named_model
from monotile.compile import compile
from monotile.config import Options
from monotile.runtime.detect import device_of
from monotile.runtime.module import CompiledModule, load
from monotile.runtime.reference import to_device
from monotile.schedule.printer import show as show_plan


@click.command()
@compiling
@click.option(
    "--show",
    type=click.Choice(["plan", "stages", "source", "ptx"]),
    default="plan",
    show_default=True,
)
def command(spec: str, dtype: str | None, target: str, options: Options, show: str) -> None:
    """Print the plan as JSON, its stages as text, the source or the PTX of MODEL, or of a file that
    `monotile compile -o` wrote."""
    fast = _compiled(spec, dtype, target, options)
    match show:
        case "stages":
            click.echo(show_plan(fast.plan), nl=False)
        case "source":
            click.echo(fast.source)
        case "ptx":
            click.echo(fast.ptx)
        case _:
            click.echo(fast.plan.to_json())


def _compiled(spec: str, dtype: str | None, target: str, options: Options) -> CompiledModule:
    if spec.endswith(".monotile"):
        return load(spec)
    model, (args, kwargs) = to_device(*named_model(spec, dtype), device_of(target, options))
    return compile(model, args, kwargs, target=target, options=options)
