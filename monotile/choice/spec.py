"""A spec: which way was taken at each place where there are several. JSON both ways."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from monotile.errors import ChoiceError

Value = Any  # what JSON has: it tells one way from the others


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place where there is something to choose. Equal for equal stages of different models.

    kind:   what is chosen: "cut", "blocks", "one stage", ...
    shape:  a digest of all that is decided about: structure, types, extents, and no names.
    target: its name, and workers: how many of them there are; "" and 0 where a choice is made for any target.
    within: a digest of the Program around, for a choice that is another one there than elsewhere; "" for all others.
    """

    kind: str
    shape: str
    target: str = ""
    workers: int = 0
    within: str = ""


Spec = dict[Key, Value]


class _Entry(Key, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line of the JSON."""

    value: Value


def plain(value: Value) -> Value:
    """`value` as JSON gives it back: lists for tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def to_json(spec: Mapping[Key, Value]) -> str:
    """One choice a line, in the spec's order."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    lines = [encode(_Entry(**msgspec.structs.asdict(k), value=v)).decode() for k, v in spec.items()]
    return "[\n" + ",\n".join(lines) + "\n]"


def from_json(text: str | bytes) -> Spec:
    """The spec of `to_json`. Raises msgspec.DecodeError for what is none."""
    names = Key.__struct_fields__
    return {
        Key(**{name: getattr(e, name) for name in names}): e.value
        for e in msgspec.json.decode(text, type=list[_Entry])
    }


def load_spec(choices: Mapping[Key, Value] | str | Path) -> Spec:
    """`choices`, or what their file holds as JSON. Raises ChoiceError where there is no such file, or no spec in it."""
    if isinstance(choices, Mapping):
        return dict(choices)
    try:
        return from_json(Path(choices).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ChoiceError(f"{choices} holds no choices: {error}") from error
