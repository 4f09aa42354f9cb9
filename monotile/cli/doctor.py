"""monotile doctor"""

import sys

import click
from rich.console import Console
from rich.table import Table

from monotile.runtime.doctor import examine


@click.command()
def command() -> None:
    """Report what this machine can compile for and run, and what is missing."""
    findings = examine()
    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        mark = {True: "[green]ok[/]", False: "[red]no[/]", None: ""}[finding.good]
        table.add_row(finding.subject, mark, finding.words)
    Console(soft_wrap=True).print(table)
    if not any(f.good for f in findings if f.subject in ("C compiler", "GPU")):
        sys.exit(1)
