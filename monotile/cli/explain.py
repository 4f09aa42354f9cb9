"""monotile explain MODEL"""

import click

from monotile.cli.options import compiling, named_model
from monotile.config import Options
from monotile.dynamo.explain import explain
from monotile.runtime.reference import to_device
from monotile.targets.detect import device_of


@click.command()
@compiling
def command(spec: str, dtype: str | None, target: str, options: Options) -> None:
    """Print how many kernels MODEL compiles to, and the operators and source lines that split it."""
    model, (args, kwargs) = to_device(*named_model(spec, dtype), device_of(target, options))
    click.echo(explain(model, args, kwargs, target=target, options=options))
