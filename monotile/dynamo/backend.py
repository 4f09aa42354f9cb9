"""The backend that PyTorch finds by its entry point, without an import."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from torch import fx

from monotile.config import Options
from monotile.dynamo.graph import Graph, Settings
from monotile.errors import InputError


def backend(
    module: fx.GraphModule,
    _: Sequence[object],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Graph:
    """The replacement of `module`, compiled at its first call for the shapes of that call.

    options: fields of `monotile.Options`, and "target". Raises InputError for anything else.
    """
    if mode is not None:
        raise InputError(
            f'mode="{mode}" is an option of Inductor: use options={{...}} with fields of monotile.Options'
        )
    return Graph(module, settings(options or {}))


def settings(options: Mapping[str, Any]) -> Settings:
    fields = dict(options)
    target = fields.pop("target", None)
    known = {f.name for f in msgspec.structs.fields(Options)}
    if unknown := sorted(fields.keys() - known):
        raise InputError(
            f"unknown options {', '.join(unknown)}: choose from target, {', '.join(sorted(known))}"
        )
    return Settings(target, Options(**fields))
