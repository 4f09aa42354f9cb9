"""The argument and options that all compiling commands share."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from monotile.config import Options
from monotile.examples import EXAMPLES
from monotile.runtime.models import Model, load_model
from monotile.runtime.reference import Call

_SHARED = (
    click.argument("model"),
    click.option(
        "--target",
        default="auto",
        show_default=True,
        help='"auto", "cpu", "cuda", or an architecture: "cuda:sm_90a".',
    ),
    click.option("--dtype", help="Type of parameters and inputs, such as float16."),
    click.option("--workers", type=int, help="Resident thread blocks or threads; default: all."),
    click.option(
        "--fast-math", is_flag=True, help="Approximate division and transcendental functions."
    ),
    click.option(
        "--arrange-parameters",
        is_flag=True,
        help="Change the strides of the parameters to the order that the kernel reads fastest.",
    ),
    click.option(
        "--specialise",
        is_flag=True,
        help="Remove channels, heads and features that the parameters' zeros make useless.",
    ),
    click.option(
        "--tf32/--no-tf32",
        default=None,
        help="Whether products of float32 may be of TF32; default: as PyTorch's settings say.",
    ),
    click.option("--no-cache", is_flag=True, help="Neither read nor write the disk cache."),
    click.option(
        "--dump", metavar="FOLDER", help="Write the result of every compilation step to FOLDER."
    ),
)

_NAMED = ("workers", "fast_math", "arrange_parameters", "specialise", "tf32")  # as in `Options`

_PLAN = click.option(
    "--plan",
    metavar="FILE",
    help="Use this Plan instead of scheduling: JSON, as `monotile inspect MODEL` prints it.",
)
_CHOICES = click.option(
    "--choices",
    metavar="FILE",
    help="Choose what this file says: JSON, as `monotile inspect MODEL --show choices` prints it.",
)


@dataclass(frozen=True)
class Given:
    """Files with a Plan, and with choices; None where there is none."""

    plan: str | None
    choices: str | None


def given_files(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --plan and --choices; the command receives `given`."""

    @functools.wraps(command)
    def wrapper(plan: str | None, choices: str | None, **rest: Any) -> None:
        command(given=Given(plan, choices), **rest)

    return _PLAN(_CHOICES(wrapper))


def compiling(command: Callable[..., None]) -> Callable[..., None]:
    """Adds MODEL and the compilation options; the command receives `spec`, `dtype`, `target` and `options`."""

    @functools.wraps(command)
    def wrapper(model: str, no_cache: bool, dump: str | None, **rest: Any) -> None:
        named = {name: rest.pop(name) for name in _NAMED}
        options = Options(**named, cache=not no_cache, dump_dir=dump, progress=True)
        command(spec=model, options=options, **rest)

    decorated: Callable[..., None] = wrapper
    for add in reversed(_SHARED):
        decorated = add(decorated)
    return decorated


def named_model(spec: str, dtype: str | None) -> tuple[Model, Call]:
    """The model of the example, file or function `spec`."""
    return load_model(EXAMPLES.get(spec, spec), dtype)
