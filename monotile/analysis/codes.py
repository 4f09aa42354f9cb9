"""Codes of a few bits: their positions in words, and the numbers that they encode.

Both are found by evaluating the decoding for all words, whatever arithmetic it uses: shifts and masks, quotients and remainders, a stack
of both. 8-bit floats are given by their type.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from monotile.analysis.affine import normalised_indices
from monotile.analysis.encoding import Encoded
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import (
    Axis,
    Expr,
    Load,
    Tensor,
    add,
    axes_of,
    children,
    idx,
    loads,
    map_loads,
    mul,
    substitute,
)
from monotile.ir.program import Compute, Program

WORDS = 256  # values of a word that are tried: all
_HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = np.array([*_HALVES, *(-x for x in _HALVES)])  # by code; OCP Microscaling Formats 1.0
FLOATS: dict[DType, Literal["e4m3", "e5m2"]] = {DType.F8E4M3: "e4m3", DType.F8E5M2: "e5m2"}


@dataclass(frozen=True, slots=True)
class Codes:
    """value: the expression that is what codes of `bits` bits stand for. order: the element of a word at each position, the lowest bits
    first. small_float: the type whose bits the codes are; None for integers, which are `scale` * (code ^ flip) + `offset`."""

    value: Expr
    bits: int
    order: tuple[int, ...]
    small_float: Literal["e2m1", "e4m3", "e5m2"] | None = None
    flip: int = 0
    scale: int = 1
    offset: int = 0


@functools.lru_cache(maxsize=4096)
def codes_in(factor: Expr, along: Axis, found: Encoded) -> Codes | None:
    """The codes from which `factor` is computed; None where words hold something else."""
    if found.words.dtype in FLOATS:
        return Codes(found.words, 8, (0,), FLOATS[found.words.dtype])
    if found.words.dtype not in (DType.U8, DType.I8):
        return None
    for integers in (False, True):
        values = dict.fromkeys(_decoded(factor, found.words, integers=integers))
        if len(values) == 1:
            (value,) = values
            codes = _codes(value, along, found)
            if codes is not None:
                return codes
    return None


def _codes(value: Expr, along: Axis, found: Encoded) -> Codes | None:
    """The codes that `value` decodes."""
    table = _tried(value, along, found)
    if table is None:
        return None
    bits = 8 // found.per
    count = 1 << bits
    shifts: list[int] = []
    numbers: list[tuple[float, ...]] = []
    for row in table:
        fields = ((s, np.arange(WORDS) >> s & (count - 1)) for s in range(0, 8, bits))
        place = next((s for s, field in fields if np.array_equal(row, row[field << s])), None)
        if place is None:
            return None
        shifts.append(place)
        numbers.append(tuple(row[np.arange(count) << place].tolist()))
    if len(set(numbers)) > 1 or sorted(shifts) != list(range(0, 8, bits)):
        return None
    order = tuple(shifts.index(s) for s in range(0, 8, bits))
    if value.dtype.is_float:
        return Codes(value, bits, order, "e2m1") if np.array_equal(numbers[0], E2M1) else None
    form = _form(np.array(numbers[0]))
    return None if form is None else Codes(value, bits, order, None, *form)


def _decoded(e: Expr, words: Load, *, integers: bool) -> list[Expr]:
    """The largest subexpressions of `e`, or those that are integers, that depend on words alone."""
    read = set(loads(e))
    if words not in read:
        return []
    if read <= set(loads(words)) and (e.dtype.is_int or not integers):
        return [e]
    return [x for c in children(e) for x in _decoded(c, words, integers=integers)]


def _tried(value: Expr, along: Axis, found: Encoded) -> np.ndarray | None:
    """The result for each word, for each element in it."""
    element, word, rest = (
        Axis("element", found.per),
        Axis("word", WORDS),
        Axis("rest", along.extent // found.per),
    )
    all_words = Tensor("words", (WORDS,), found.words.dtype)
    body = map_loads(value, lambda x: Load(all_words, (word,)) if x == found.words else x)
    place = add(mul(rest, idx(found.per)), element)
    body = normalised_indices(substitute(body, {along.name: place}))
    if not axes_of(body) <= {element, word}:
        return None
    out = Tensor("numbers", (found.per, WORDS), value.dtype)
    program = Program((all_words,), (), (Compute(out, (element, word), (), None, body),), (out,))
    given = np.arange(WORDS).astype(np.uint8).view(found.words.dtype.numpy)
    (table,) = evaluate(program, {"words": given})
    return table.astype(np.float64 if value.dtype.is_float else np.int64)


def _form(numbers: np.ndarray) -> tuple[int, int, int] | None:
    """flip, scale, offset."""
    count = len(numbers)
    for flip in (0, count // 2, count - 1):
        flipped = numbers[np.arange(count) ^ flip]
        steps = np.diff(flipped)
        if len(set(steps.tolist())) == 1:
            return flip, int(steps[0]), int(flipped[0])
    return None
