"""The formats by name."""

import re
from collections.abc import Callable, Mapping
from typing import Literal

import torch

from monotile.errors import InputError
from monotile.packing.codebook import NormalFloat
from monotile.packing.floats import Floats
from monotile.packing.format import Format
from monotile.packing.integers import Integers
from monotile.packing.microscaling import BLOCK, Microscaling
from monotile.packing.sparse import Sparse

Group = int | None | Literal["default"]


def _integers(bits: int) -> Callable[[str, int | None, bool], Format]:
    return lambda name, group, symmetric: Integers(name, group, bits, symmetric)


def _floats(element: torch.dtype) -> Callable[[str, int | None, bool], Format]:
    return lambda name, group, _: Floats(name, group, element)


def _microscaling(bits: int) -> Callable[[str, int | None, bool], Format]:
    return lambda name, group, _: Microscaling(name, group, bits)


# The group if none is given, and the format of a name, a group, and whether it is symmetric.
FORMATS: Mapping[str, tuple[int, Callable[[str, int | None, bool], Format]]] = {
    "int8": (128, _integers(8)),
    "int4": (128, _integers(4)),
    "int2": (128, _integers(2)),
    "int1": (128, _integers(1)),
    "nf4": (64, lambda name, group, _: NormalFloat(name, group)),
    "fp8": (128, _floats(torch.float8_e4m3fn)),
    "fp8_e4m3": (128, _floats(torch.float8_e4m3fn)),
    "fp8_e5m2": (128, _floats(torch.float8_e5m2)),
    "mxfp4": (BLOCK, _microscaling(4)),
    "mxfp8": (BLOCK, _microscaling(8)),
}
ASYMMETRIC = ("int8", "int4", "int2")
POSITIONS = 256  # that a byte tells apart


def format_named(name: str, group: Group = "default", symmetric: bool = True) -> Format:
    """The format with its group size. Raises InputError for an unknown name or an impossible group size."""
    if not symmetric and name not in ASYMMETRIC:
        raise InputError(
            f"{name} has no zero to move: symmetric=False is for {', '.join(ASYMMETRIC)}"
        )
    if pattern := re.fullmatch(r"(\d+):(\d+)(?:x(\d+))?", name):
        return _sparse(name, (int(pattern[1]), int(pattern[2]), int(pattern[3] or 1)), group)
    if name not in FORMATS:
        raise InputError(
            f"{name!r} is no format: there are {', '.join(FORMATS)}, and N:M or N:MxV, such as 2:4 and 8:32x64"
        )
    default, make = FORMATS[name]
    size = default if group == "default" else group
    if size is not None and size < 1:
        raise InputError(f"group={size}: give a number of neighbours, or None for a whole row")
    if name.startswith("mx") and size != BLOCK:
        raise InputError(f"{name} has blocks of {BLOCK}: leave group out")
    return make(name, size, symmetric)


def _sparse(name: str, sizes: tuple[int, int, int], group: Group) -> Format:
    kept, of, vector = sizes
    if not 0 < kept < of <= POSITIONS:
        raise InputError(f"{name} is no format: N:M needs 0 < N < M <= {POSITIONS}, such as 2:4")
    if group != "default" and group != of:
        raise InputError(f"{name} has no scales: leave group out")
    if vector < 1:
        raise InputError(f"{name} is no format: vectors have a row at least, such as 8:32x64")
    return Sparse(name, of, kept, vector)
