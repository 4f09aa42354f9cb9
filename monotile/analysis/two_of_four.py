"""2:4 sparse factors, as tensor cores take them: two of each four neighbours along an axis are stored, side by side, with their positions
among the four, two bits each, in a byte for eight neighbours.

Such a factor is recognised by its values: it is evaluated for every byte whose positions ascend.
"""

import functools
from dataclasses import dataclass

import numpy as np

from monotile.analysis.affine import Affine, affine, normalised_indices, offset
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import (
    Axis,
    Expr,
    Load,
    Tensor,
    Unary,
    add,
    axes_of,
    binary,
    idx,
    loads,
    map_loads,
    mul,
    substitute,
    walk,
)
from monotile.ir.program import Compute, Program

RUN = 8  # neighbours of a byte
BYTES = 256
VALUES = 4  # of a run


@dataclass(frozen=True, slots=True)
class TwoOfFour:
    """values: the first value of each four neighbours, which the second one follows. places: the byte of each eight."""

    values: Load
    places: Load


@functools.lru_cache(maxsize=4096)
def two_of_four(factor: Expr, along: Axis) -> TwoOfFour | None:
    """How `factor` is stored, if it is 2:4 sparse; its positions are known to ascend."""
    if isinstance(factor, Load) or along.extent % RUN or not factor.dtype.is_float:
        return None
    known = {e.x for e in walk(factor) if isinstance(e, Unary) and e.op == "ascends"}
    read = dict.fromkeys(loads(factor))
    places = [x for x in read if x in known]
    values = [x for x in read if x not in known]
    if len(places) != 1 or len(values) != 2 or any(loads(i) for x in read for i in x.index):
        return None
    (byte,), first = places, values[0]
    alike = {(x.tensor.name, x.dtype) for x in values} == {(first.tensor.name, factor.dtype)}
    found = _in_order(values, along)
    if not alike or found is None or not _one_byte(byte, along):
        return None
    return TwoOfFour(found[0], byte) if _selects(factor, along, found, byte) else None


def _in_order(values: list[Load], along: Axis) -> tuple[Load, Load] | None:
    """The two in their order in memory, if they are the values of each four, side by side."""
    start = [_at(x, along, 0) for x in values]
    first, second = sorted(zip(start, values, strict=True), key=lambda x: x[0].constant)
    beside = first[0].terms == second[0].terms and second[0].constant == first[0].constant + 1
    steps = all(
        _at(x, along, n).terms == first[0].terms
        and _at(x, along, n).constant - at.constant == n // 4 * 2
        for at, x in (first, second)
        for n in range(RUN)
    )
    even = _advances(first[0], along, VALUES)
    return (first[1], second[1]) if beside and steps and even else None


def _one_byte(byte: Load, along: Axis) -> bool:
    """Whether each run of eight neighbours reads its own byte, in order."""
    first = _at(byte, along, 0)
    alike = all(_at(byte, along, n) == first for n in range(RUN))
    return byte.dtype is DType.U8 and alike and _advances(first, along, 1)


def _run(along: Axis) -> Axis:
    """The number of a run of eight neighbours."""
    return Axis("run", along.extent // RUN)


def _advances(where: Affine, along: Axis, step: int) -> bool:
    """Whether an offset advances by so many elements for each run, and depends on its number in no other way."""
    run = _run(along)
    inner = any(run in axes_of(a) for a, _ in where.terms if a != run)
    return where.coefficient(run) == step and not inner


def _at(x: Load, along: Axis, n: int) -> Affine:
    """The offset that neighbour `n` of a run reads."""
    place = add(mul(_run(along), idx(RUN)), idx(n))
    return offset(
        Load(x.tensor, tuple(affine(substitute(i, {along.name: place})).expr for i in x.index))
    )


def _selects(factor: Expr, along: Axis, values: tuple[Load, Load], byte: Load) -> bool:
    """Whether it is each value at its position, and zero elsewhere, for all bytes that ascend."""
    number, which = Axis("number", RUN), Axis("which", BYTES)
    given, bytes_ = Tensor("given", (VALUES,), factor.dtype), Tensor("bytes", (BYTES,), DType.U8)

    def read(x: Load) -> Expr:
        if x == byte:
            return Load(bytes_, (which,))
        group = mul(binary("floordiv", number, idx(4)), idx(2))
        return Load(given, (add(group, idx(values.index(x))),))

    put = {along.name: add(mul(_run(along), idx(RUN)), number)}
    body = normalised_indices(substitute(map_loads(factor, read), put))
    if not axes_of(body) <= {number, which}:
        return False
    out = Tensor("out", (BYTES, RUN), factor.dtype)
    made = Compute(out, (which, number), (), None, body)
    program = Program((given, bytes_), (), (made,), (out,))
    numbers = np.arange(1, VALUES + 1).astype(factor.dtype.numpy)
    (found,) = evaluate(program, {"given": numbers, "bytes": np.arange(BYTES).astype(np.uint8)})
    expected, ascend = _expected(numbers)
    return bool(np.array_equal(found.astype(np.float64)[ascend], expected[ascend]))


def _expected(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maps each byte to the eight neighbours; and whether its positions ascend."""
    out, ascend = np.zeros((BYTES, RUN)), np.ones(BYTES, bool)
    for byte in range(BYTES):
        at = [byte >> 2 * n & 3 for n in range(VALUES)]
        ascend[byte] = at[0] < at[1] and at[2] < at[3]
        for n, place in enumerate(at):
            out[byte, n // 2 * 4 + place] = numbers[n]
    return out, ascend
