"""`monotile`: the command line. A command's module is imported when it is run, so that help is quick."""

import importlib
import os
import sys

import click

import monotile
from monotile.errors import InternalError, MonotileError

_COMMANDS = {
    "compile": (
        "monotile.cli.compile:command",
        "Compile a model and say what came out; -o saves it.",
    ),
    "run": ("monotile.cli.run:command", "Compile, check against PyTorch in float64, and time."),
    "bench": ("monotile.cli.bench:command", "Time a model beside its rivals, all checked."),
    "explain": ("monotile.cli.explain:command", "Say into how many kernels a model goes, and why."),
    "inspect": ("monotile.cli.inspect:command", "Print the plan, source or PTX of a model."),
    "calibrate": (
        "monotile.cli.calibrate:command",
        "Measure this machine's figures and use them from now on.",
    ),
    "doctor": ("monotile.cli.doctor:command", "Say what this machine can compile for and run."),
}


class Commands(click.Group):
    """Commands by name, imported on demand; a user's mistake ends in a message, not in a traceback."""

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
            click.echo("This is a mistake of Monotile's, not yours. Please report it:", err=True)
            raise


@click.group(cls=Commands)
@click.version_option(monotile.__version__)
def main() -> None:
    """Compile a whole PyTorch model into one kernel.

    MODEL is an example (bert_base, lstm, lstm_unrolled, mmoe), a .pt2 file that torch.export.save wrote, or
    module:function where function() gives (model, args) or (model, args, kwargs).
    """
    sys.path.insert(0, os.getcwd())  # "module:function" may be a file here, as for `python -m`


if __name__ == "__main__":
    main()
