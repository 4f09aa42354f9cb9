"""Decoding of packed elements along a line into a buffer: a loop over words, with one statement for each position in a word."""

import math

from monotile.analysis.affine import normalised_indices
from monotile.analysis.encoding import encoded
from monotile.codegen.loops import Loops, Row
from monotile.codegen.spelling import convert
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, add, idx, mul, substitute

POSITION = "k"  # the axis along the line
LEAST = 32  # neighbours that share operands of decoding (a scale, a zero), at least

Words = tuple[int, int]  # elements of a word; neighbours that share operands of decoding


def words_of(factor: Expr, along: Axis, *lengths: int) -> Words | None:
    """The words of a factor that is stored as codes along an axis, for lines of these lengths; None if it is not, or vectors would be too
    short."""
    found = encoded(factor, along)
    if found is None:
        return None
    shared = math.gcd(along.extent, *lengths, *(s.run for s in found.sides if s.run))
    return (found.per, shared) if shared % found.per == 0 and shared >= LEAST else None


def write_decoded(e: Loops, value: Expr, count: str, words: Words, into: tuple[str, DType]) -> None:
    """Writes the decoding of the first `count` elements of a line, a multiple of the number of neighbours that share operands of decoding.
    value: the element at `POSITION`. into: text of the buffer, and the type of its elements."""
    per, shared = words
    buffer, dtype = into
    group, word = Axis("group", 1 << 20), Axis("r", shared // per)
    first = add(mul(group, idx(shared)), mul(word, idx(per)))
    places = [add(first, idx(i)) for i in range(per)]
    values = [normalised_indices(substitute(value, {POSITION: p})) for p in places]

    def write() -> None:
        for place, x in zip(places, values, strict=True):
            text = convert(e.root(x), x.dtype, dtype)
            e.writer.write(e.store(dtype, buffer, e.index(place), text))

    groups = str(int(count) // shared) if count.isdigit() else f"({count}) / {shared}"
    with e.writer.open(*e.counted(group, groups)):
        e.each(Row(word, "0", str(word.extent), word), values, write)
