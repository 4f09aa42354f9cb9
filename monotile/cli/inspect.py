"""monotile inspect MODEL|FILE"""

import click
from rich.console import Console
from rich.table import Table

from monotile.analysis.facts import show as show_facts
from monotile.choice.chooser import MODEL, Replay
from monotile.choice.spec import load_spec, to_json
from monotile.cli.options import Given, compiling, given_files, named_model
from monotile.compile import compile, record, trace
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.ir.program import Program
from monotile.pipeline import transform
from monotile.plan.printer import show as show_plan
from monotile.runtime.models import Model
from monotile.runtime.module import CompiledModule, load
from monotile.runtime.reference import Call, to_device
from monotile.targets.detect import device_of


@click.command()
@compiling
@given_files
@click.option(
    "--show",
    type=click.Choice(["plan", "stages", "source", "ptx", "facts", "choices"]),
    default="plan",
    show_default=True,
)
@click.option("--passes", is_flag=True, help="What each pass did and how long it took, instead.")
def command(
    spec: str,
    dtype: str | None,
    target: str,
    options: Options,
    given: Given,
    show: str,
    passes: bool,
) -> None:
    """Print the plan as JSON, its stages as text, the source or the PTX of MODEL, or of a file written by
    `monotile compile -o`; or facts about MODEL: dependences, arithmetic intensity, reuse; or what was chosen on the way, as JSON; or the tables of passes."""
    if given.plan and (passes or show == "choices"):
        raise click.UsageError("a plan that is given is not made: leave out --plan")
    if given.choices and passes:
        raise click.UsageError("--passes shows what the cost model chooses: leave out --choices")
    if passes:
        _show_passes(spec, dtype, target, options)
        return
    if show == "facts":
        click.echo(show_facts(_program(spec, dtype, options)), nl=False)
        return
    if show == "choices":
        model, (args, kwargs) = to_device(*_named(spec, dtype), device_of(target, options))
        chooser = Replay(load_spec(given.choices)) if given.choices else MODEL
        found = record(model, args, kwargs, target=target, options=options, chooser=chooser)
        click.echo(to_json(found))
        return
    fast = _compiled(spec, dtype, target, options, given)
    match show:
        case "stages":
            click.echo(show_plan(fast.plan), nl=False)
        case "source":
            click.echo(fast.source)
        case "ptx":
            click.echo(fast.ptx)
        case _:
            click.echo(fast.plan.to_json())


def _show_passes(spec: str, dtype: str | None, target: str, options: Options) -> None:
    """Both tables of `monotile/pipeline.py`, with what each pass did to the model."""
    model, (args, kwargs) = to_device(*_named(spec, dtype), device_of(target, options))
    found = trace(model, args, kwargs, target=target, options=options)
    console = Console(soft_wrap=True)
    for title, traces in zip(("Program to Program", "Program to Plan"), found, strict=True):
        table = Table(title, "ms", "changed", box=None, pad_edge=False)
        table.columns[1].justify = "right"
        for t in traces:
            if t.left_out:
                table.add_row(f"[dim]{t.name}[/]", "", f"[dim]left out: {t.left_out}[/]")
            else:
                table.add_row(t.name, f"{t.seconds * 1e3:.1f}", t.changed)
        whole = sum(t.seconds for t in traces)
        table.add_row("together", f"{whole * 1e3:.1f}", "")
        console.print(table)
        console.print()


def _named(spec: str, dtype: str | None) -> tuple[Model, Call]:
    if spec.endswith(".monotile"):
        raise click.UsageError("a compiled file contains no Program: give the model instead")
    return named_model(spec, dtype)


def _program(spec: str, dtype: str | None, options: Options) -> Program:
    """The Program that is handed to the scheduler."""
    model, (args, kwargs) = _named(spec, dtype)
    captured = capture(export(model, args, kwargs))
    return transform(captured.program, captured.constants, options)[0]


def _compiled(
    spec: str, dtype: str | None, target: str, options: Options, given: Given
) -> CompiledModule:
    if spec.endswith(".monotile"):
        if given.plan or given.choices:
            raise click.UsageError(
                "a compiled file contains its plan already: give the model instead"
            )
        return load(spec)
    model, (args, kwargs) = to_device(*named_model(spec, dtype), device_of(target, options))
    return compile(
        model, args, kwargs, target=target, options=options, plan=given.plan, choices=given.choices
    )
