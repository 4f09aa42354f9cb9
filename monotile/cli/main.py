"""`monotile`: the command line. A command's module is imported when it runs, so that --help is fast."""

import importlib
import os
import sys

import click

import monotile
from monotile.errors import InternalError, MonotileError

_COMMANDS = {
    "compile": (
        "monotile.cli.compile:command",
        "Compile a model and print a summary; -o saves it.",
    ),
    "run": (
        "monotile.cli.run:command",
        "Compile a model, check it against PyTorch in float64, and time both.",
    ),
    "bench": (
        "monotile.cli.bench:command",
        "Time a model beside PyTorch, torch.compile and JAX, all checked.",
    ),
    "generate": (
        "monotile.cli.generate:command",
        "Write on from a prompt with a language model of a folder.",
    ),
    "explain": (
        "monotile.cli.explain:command",
        "Print how many kernels a model compiles to, and why.",
    ),
    "inspect": ("monotile.cli.inspect:command", "Print the plan, source or PTX of a model."),
    "calibrate": (
        "monotile.cli.calibrate:command",
        "Measure this machine's figures and use them from now on.",
    ),
    "doctor": ("monotile.cli.doctor:command", "Report what this machine can compile for and run."),
}


class Commands(click.Group):
    """Commands by name, imported on demand. A MonotileError is printed as a message without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except MonotileError as error:
            raise click.ClickException(str(error)) from error
        except InternalError:
            click.echo("This is a bug in Monotile. Please report it:", err=True)
            raise


@click.group(cls=Commands)
@click.version_option(monotile.__version__)
def main() -> None:
    """Compile a whole PyTorch model into one kernel.

    MODEL is an example (bert_base, lstm, lstm_unrolled, mmoe), a .pt2 file written by torch.export.save,
    or module:function, where function() returns (model, args) or (model, args, kwargs).
    """
    sys.path.insert(
        0, os.getcwd()
    )  # so that "module:function" finds files of this folder, as `python -m` does


if __name__ == "__main__":
    main()
