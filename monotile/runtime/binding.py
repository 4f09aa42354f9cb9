"""Binds a call's arguments to the compiled call: positional or by keyword, with defaults given or left out."""

from collections.abc import Mapping

import torch

from monotile.errors import InputError
from monotile.ir.signature import Signature

Call = tuple[tuple[object, ...], dict[str, object]]


def bound(
    signature: Signature, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Call | None:
    """The call in the compiled form; None if it has none. Raises InputError if it gives another value than the default that was left out at
    compile time."""
    places = [p.name for p in signature.parameters if p.positional]
    defaults = {p.name: p.default for p in signature.parameters if p.optional}
    positional, keywords = signature.input_tree.children()
    count = len(positional.children())
    if max(count, len(args)) > len(places):
        return None
    given = dict(zip(places, args, strict=False))
    if given.keys() & kwargs.keys():
        return None
    given |= kwargs
    wanted = [*places[:count], *keywords.context]
    if not all(name in given or name in defaults for name in wanted):
        return None
    for name in given.keys() - set(wanted):
        if name not in defaults:
            return None
        x, default = given[name], defaults[name]
        if x is not default and (type(x) is not type(default) or x != default):
            got = "a tensor" if isinstance(x, torch.Tensor) else repr(x)
            raise InputError(
                f"{name} was left out when the model was compiled, so its default {default!r} is compiled in; got {got}."
                " Compile again with it"
            )
    full = {**defaults, **given}
    return tuple(full[n] for n in wanted[:count]), {n: full[n] for n in wanted[count:]}
