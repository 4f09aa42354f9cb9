"""Figures of machines: JSON files, one for each, in the `figures` folder of a kind of target."""

from pathlib import Path
from typing import TypeVar

import msgspec

from monotile.errors import InternalError

_F = TypeVar("_F", bound=msgspec.Struct)


def read_figures(folder: Path, kind: type[_F]) -> dict[str, _F]:
    """Every file of `folder`, by its name without the suffix, in order of these."""
    return {path.stem: _decode(path, kind) for path in sorted(folder.glob("*.json"))}


def _decode(path: Path, kind: type[_F]) -> _F:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise InternalError(f"{path}: {error}") from error
