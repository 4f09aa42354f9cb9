"""monotile explain MODEL"""

import click
import msgspec

from monotile.cli.options import compiling, named_model
from monotile.cli.times import show_times
from monotile.compile import compile, floors
from monotile.config import Options
from monotile.dynamo.explain import explain
from monotile.errors import TargetError
from monotile.runtime.models import Model
from monotile.runtime.profile import StageTimes
from monotile.runtime.reference import Call, to_device
from monotile.targets.detect import device_of

WARM_UP = 3  # calls before the one that is looked at


@click.command()
@compiling
@click.option(
    "--time",
    is_flag=True,
    help="Print what bounds MODEL instead: bytes, operations or hand-offs, and what its largest stages lose.",
)
def command(spec: str, dtype: str | None, target: str, options: Options, time: bool) -> None:
    """Print how many kernels MODEL compiles to, and the operators and source lines that split it."""
    model, call = to_device(*named_model(spec, dtype), device_of(target, options))
    args, kwargs = call
    if time:
        least = floors(model, args, kwargs, target=target, options=options)
        show_times(least, _measured(model, call, target, options))
        return
    click.echo(explain(model, args, kwargs, target=target, options=options))


def _measured(
    model: Model, call: Call, target: str, options: Options
) -> dict[str, StageTimes] | None:
    """What each stage takes, recorded by the kernel itself; None where there is no such machine."""
    args, kwargs = call
    profiled = msgspec.structs.replace(options, profile=True)
    fast = compile(model, args, kwargs, target=target, options=profiled)
    try:
        for _ in range(WARM_UP):
            fast(*args, **kwargs)
    except TargetError:
        return None
    return {s.stage: s for s in fast.profile(*args, **kwargs).stages()}
