"""Figures measured on this machine: validated, stored next to the cache, and used in place of the shipped ones.

A figure has a dotted name within its file: "dram_bandwidth", "flops.fma", "model.matmul.warps.path".
"""

import contextlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from monotile.cache import cache_directory, write_atomically
from monotile.config import Options

FARTHEST = 4.0  # times that a measured figure may be larger or smaller than the shipped one

_S = TypeVar("_S", bound=msgspec.Struct)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The present machine.

    name:      a readable name, from which the file's name is derived.
    identity:  its distinguishing properties: stored figures are used where all of them are the same.
    shipped:   the shipped figures for it, by their dotted names.
    source:    the file that contains them, and their origin.
    """

    name: str
    identity: dict[str, str | int]
    shipped: dict[str, float]
    source: str


class Measured(msgspec.Struct, frozen=True):
    """A measured figure. why_not: why it is only reported; "" where it may be used."""

    value: float
    why_not: str = ""


class Reading(msgspec.Struct, frozen=True):
    """A figure, old and new. old: NaN where there was none. why_not: why the new one is not used; "" where it is."""

    name: str
    old: float
    new: float
    why_not: str


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a machine. when: ISO 8601."""

    identity: dict[str, str | int]
    when: str
    figures: dict[str, float]


def judge(shipped: Mapping[str, float], measured: Mapping[str, Measured]) -> tuple[Reading, ...]:
    """The measured figures next to the present ones; those that differ too much are not used."""
    out: list[Reading] = []
    for name, m in measured.items():
        old = shipped.get(name, math.nan)
        out.append(Reading(name, old, m.value, m.why_not or _why_not(old, m.value)))
    return tuple(out)


def _why_not(old: float, new: float) -> str:
    if math.isnan(old):
        return "no model asks for it"
    if not math.isfinite(new) or new <= 0:
        return "it is no measurement"
    apart = max(old / new, new / old)
    return f"it is {apart:.1f} times off" if apart > FARTHEST else ""


def path_of(machine: Machine, options: Options) -> Path:
    stem = re.sub(r"[^a-z0-9]+", "-", machine.name.lower()).strip("-")
    return cache_directory(options) / "figures" / f"{stem}.json"


def keep(machine: Machine, readings: tuple[Reading, ...], when: str, options: Options) -> Path:
    """Writes the readings that may be used. Raises OSError where the folder cannot be written."""
    used = {r.name: r.new for r in readings if not r.why_not}
    path = path_of(machine, options)
    content = msgspec.json.encode(Kept(identity=machine.identity, when=when, figures=used))
    write_atomically(path, msgspec.json.format(content, indent=2) + b"\n")
    return path


def kept(machine: Machine, options: Options) -> Kept | None:
    """The figures stored for this machine, without those that no longer exist or differ too much; None if there are none."""
    try:
        found = msgspec.json.decode(path_of(machine, options).read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return None
    if found.identity != machine.identity:
        return None
    known = {n: v for n, v in found.figures.items() if n in machine.shipped}
    used = {n: v for n, v in known.items() if not _why_not(machine.shipped[n], v)}
    return msgspec.structs.replace(found, figures=used)


def reset(machine: Machine, options: Options) -> bool:
    """Removes the stored figures; gives whether there were any."""
    path = path_of(machine, options)
    there = path.exists()
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return there


def flat(figures: msgspec.Struct) -> dict[str, float]:
    """The numbers of a struct that are rates, times or fitted (not whole), by their dotted names."""
    out: dict[str, float] = {}
    for name, value in msgspec.structs.asdict(figures).items():
        inner: Any = value
        if isinstance(value, float):
            out[name] = value
        elif isinstance(value, msgspec.Struct):
            inner = flat(value)
        if isinstance(inner, dict):
            out |= {f"{name}.{k}": v for k, v in inner.items() if isinstance(v, float)}
    return out


def replaced(figures: _S, new: Mapping[str, float]) -> _S:
    """`figures` with those of the dotted names in `new` replaced."""
    changes: dict[str, object] = {}
    for name, value in msgspec.structs.asdict(figures).items():
        inner = {n.partition(".")[2]: v for n, v in new.items() if n.partition(".")[0] == name}
        if isinstance(value, float) and "" in inner:
            changes[name] = inner[""]
        elif inner and isinstance(value, msgspec.Struct):
            changes[name] = replaced(value, inner)
        elif inner and isinstance(value, dict):
            changes[name] = value | inner
    return msgspec.structs.replace(figures, **changes) if changes else figures
