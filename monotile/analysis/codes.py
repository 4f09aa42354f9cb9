"""Codes of a few bits: their positions in words, and the numbers that they encode.

For integers both are found by evaluating the decoding for all words, whatever arithmetic it uses: shifts and masks, quotients and
remainders, a stack of both. 8-bit floats are given by their type.
"""

import functools
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Codes:
    """value: the integer expression that equals `scale` * (code ^ flip) + `offset`; code: `bits` bits. order: the element of a word at
    each position, the lowest bits first. Or an 8-bit float, whose codes are its bits."""

    value: Expr
    bits: int
    flip: int
    scale: int
    offset: int
    order: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        return self.value.dtype.is_float


@functools.lru_cache(maxsize=4096)
def codes_in(factor: Expr, along: Axis, found: Encoded) -> Codes | None:
    """The codes from which `factor` is computed; None where words hold something else."""
    if found.words.dtype in (DType.F8E4M3, DType.F8E5M2):
        return Codes(found.words, 8, 0, 1, 0, (0,))
    values = dict.fromkeys(_integers(factor, found.words))
    if found.words.dtype not in (DType.U8, DType.I8) or len(values) != 1:
        return None
    (value,) = values
    table = _tried(value, along, found)
    if table is None:
        return None
    bits = 8 // found.per
    count = 1 << bits
    shifts: list[int] = []
    numbers: list[tuple[int, ...]] = []
    for row in table:
        fields = ((s, np.arange(WORDS) >> s & (count - 1)) for s in range(0, 8, bits))
        place = next((s for s, field in fields if np.array_equal(row, row[field << s])), None)
        if place is None:
            return None
        shifts.append(place)
        numbers.append(tuple(row[np.arange(count) << place].tolist()))
    form = _form(np.array(numbers[0]))
    if form is None or len(set(numbers)) > 1 or sorted(shifts) != list(range(0, 8, bits)):
        return None
    order = tuple(shifts.index(s) for s in range(0, 8, bits))
    return Codes(value, bits, *form, order)


def _integers(e: Expr, words: Load) -> list[Expr]:
    """The largest integer subexpressions of `e` that depend on words alone."""
    read = set(loads(e))
    if words not in read:
        return []
    if read <= set(loads(words)) and e.dtype.is_int:
        return [e]
    return [x for c in children(e) for x in _integers(c, words)]


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
    return table.astype(np.int64)


def _form(numbers: np.ndarray) -> tuple[int, int, int] | None:
    """flip, scale, offset."""
    count = len(numbers)
    for flip in (0, count // 2, count - 1):
        flipped = numbers[np.arange(count) ^ flip]
        steps = np.diff(flipped)
        if len(set(steps.tolist())) == 1:
            return flip, int(steps[0]), int(flipped[0])
    return None
