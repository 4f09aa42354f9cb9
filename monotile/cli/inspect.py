"""monotile inspect MODEL|FILE"""

import click

from monotile.analysis.facts import show as show_facts
from monotile.cli.options import compiling, named_model
from monotile.compile import compile
from monotile.config import Options
from monotile.frontends.torch.capture import capture, export
from monotile.ir.program import Program
from monotile.pipeline import transform
from monotile.plan.printer import show as show_plan
from monotile.runtime.module import CompiledModule, load
from monotile.runtime.reference import to_device
from monotile.targets.detect import device_of


@click.command()
@compiling
@click.option(
    "--show",
    type=click.Choice(["plan", "stages", "source", "ptx", "facts"]),
    default="plan",
    show_default=True,
)
def command(spec: str, dtype: str | None, target: str, options: Options, show: str) -> None:
    """Print the plan as JSON, its stages as text, the source or the PTX of MODEL, or of a file that
    `monotile compile -o` wrote; or facts about MODEL: dependences, intensities, reuse."""
    if show == "facts":
        click.echo(show_facts(_program(spec, dtype, options)), nl=False)
        return
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


def _program(spec: str, dtype: str | None, options: Options) -> Program:
    """The Program that is scheduled."""
    if spec.endswith(".monotile"):
        raise click.UsageError("a compiled file holds no Program: name the model")
    model, (args, kwargs) = named_model(spec, dtype)
    captured = capture(export(model, args, kwargs))
    return transform(captured.program, captured.constants, options, lambda *_: None)[0]


def _compiled(spec: str, dtype: str | None, target: str, options: Options) -> CompiledModule:
    if spec.endswith(".monotile"):
        return load(spec)
    model, (args, kwargs) = to_device(*named_model(spec, dtype), device_of(target, options))
    return compile(model, args, kwargs, target=target, options=options)
