"""The first few of many elements by their keys: the last of those keys is found digit by digit, and the positions of all up to it are listed.

Of n keys each of some 13 digits counts 16 n comparisons, whatever n is; a sort has n / 8 for each element (`long_sort.py`).
"""

from collections.abc import Sequence

from monotile.frontends.builder import Builder, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.matrix_loops import iterated
from monotile.frontends.torch.lower.scans import scanned
from monotile.frontends.torch.lower.sort_keys import HALF
from monotile.frontends.torch.lower.views import along
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Tensor, cast, const, idx

MANY = 1 << 13  # elements, from which on this is worth its steps
SHARE = 8  # of the elements at most one of so many is selected
BITS = 4  # of a digit
CHUNKS = 128  # that are counted side by side
RUN = 32  # elements that are counted one by one
_LOWEST = -(1 << 63)


def first_places(b: Builder, keys: Tensor, d: int, k: int) -> Tensor:
    """[..., k, ...]: the positions along `d` of the `k` smallest of the keys of `sort_keys.py`, ascending. 1 <= k <= n."""
    last, n, shape = _last(b, keys, d, k), keys.shape[d], keys.shape

    def chosen(i: Sequence[Expr], place: Expr) -> Expr:
        """1 if the element at `place`, which may be behind all, is among the first, or else 0."""
        key = load(keys, along(i, d, lambda _: s.minimum(place, n - 1)))
        there = s.both(s.le(key, load(last, [*i[:d], *i[d + 1 :]])), s.lt(place, n))
        return cast(there, DType.I64)

    def in_run(*axes: Expr) -> Expr:
        *i, r = axes
        counted = chosen(i, s.add(s.mul(s.floordiv(i[d], RUN), RUN), r))
        return s.select(s.le(r, s.mod(i[d], RUN)), counted, idx(0))

    own = b.emit(shape, DType.I64, in_run, reduce=(RUN,), combiner="sum", part="in_run")
    runs = -(-n // RUN)

    def of_run(*i: Expr) -> Expr:
        return load(own, along(i, d, lambda r: s.minimum(s.add(s.mul(r, RUN), RUN - 1), n - 1)))

    in_runs = b.emit((*shape[:d], runs, *shape[d + 1 :]), DType.I64, of_run, part="in_runs")
    up_to = scanned(b, in_runs, d, "sum", 0, DType.I64, part="up_to")

    def whole_runs(*axes: Expr) -> Expr:
        *i, r = axes
        return cast(s.le(load(up_to, along(i, d, lambda _: r)), i[d]), DType.I64)

    few = (*shape[:d], k, *shape[d + 1 :])
    run = b.emit(few, DType.I64, whole_runs, reduce=(runs,), combiner="sum", part="run")

    def rest_of_run(*axes: Expr) -> Expr:
        *i, r = axes
        at = along(i, d, lambda _: s.minimum(load(run, i), runs - 1))
        left = s.sub(i[d], s.sub(load(up_to, at), load(in_runs, at)))
        place = s.add(s.mul(load(run, i), RUN), r)
        passed = s.le(load(own, along(i, d, lambda _: s.minimum(place, n - 1))), left)
        return cast(s.both(passed, s.lt(place, n)), DType.I64)

    rest = b.emit(few, DType.I64, rest_of_run, reduce=(RUN,), combiner="sum", part="rest")

    def place(*i: Expr) -> Expr:
        return s.minimum(s.add(s.mul(load(run, i), RUN), load(rest, i)), n - 1)

    return b.emit(few, DType.I64, place, part="places")


def _last(b: Builder, keys: Tensor, d: int, k: int) -> Tensor:
    """The key of rank k - 1 of each row."""
    n, rows = keys.shape[d], (*keys.shape[:d], *keys.shape[d + 1 :])
    high = (64 - HALF.bit_length() + 1) // BITS
    low = max(
        1, -(-(int(n) - 1).bit_length() // BITS)
    )  # digits of a position; those above are zeros
    chunk = -(-n // CHUNKS)

    def shift(step: Axis) -> Expr:
        """How many bits are below the digit of a step."""
        position = s.mul(s.sub(high + low - 1, step), BITS)
        return s.select(s.lt(step, high), s.sub(64 - BITS, s.mul(step, BITS)), position)

    def digit(
        c: Builder, step: Axis, states: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        found, left = states

        def counted(*axes: Expr) -> Expr:
            *row, part, j, r = axes
            place = s.add(s.mul(part, chunk), r)
            key = load(keys, [*row[:d], s.minimum(place, n - 1), *row[d:]])
            ascending = s.op("bitxor", key, _LOWEST)  # as if it had no sign
            above = s.op("bitand", ascending, s.op("shl", const(-1, DType.I64), shift(step)))
            wanted = s.op("bitor", load(found, row), s.op("shl", j, shift(step)))
            return cast(s.both(s.eq(above, wanted), s.lt(place, n)), DType.I64)

        kinds = 1 << BITS
        parts = c.emit((*rows, CHUNKS, kinds), DType.I64, counted, reduce=(chunk,), combiner="sum", part="parts")  # fmt: skip

        def of_parts(*axes: Expr) -> Expr:
            *row, j, part, smaller = axes
            there = load(parts, [*row, part, smaller])
            return s.select(s.le(smaller, j), there, idx(0))

        up_to = c.emit((*rows, kinds), DType.I64, of_parts, reduce=(CHUNKS, kinds), combiner="sum", part="up_to")  # fmt: skip

        def passed(*axes: Expr) -> Expr:
            *row, j = axes
            return cast(s.le(load(up_to, [*row, j]), load(left, row)), DType.I64)

        own = c.emit(rows, DType.I64, passed, reduce=(kinds,), combiner="sum", part="digit")

        def remaining(*row: Expr) -> Expr:
            before = load(up_to, [*row, s.maximum(s.sub(load(own, row), 1), 0)])
            return s.sub(load(left, row), s.select(s.gt(load(own, row), 0), before, idx(0)))

        rest = c.emit(rows, DType.I64, remaining, part="left")
        grown = c.emit(rows, DType.I64, lambda *row: s.op("bitor", load(found, row), s.op("shl", load(own, row), shift(step))), part="found")  # fmt: skip
        return [grown, rest], []

    nothing = b.emit(rows, DType.I64, lambda *_: idx(0), part="nothing")
    first = b.emit(rows, DType.I64, lambda *_: idx(k - 1), part="first")
    (found, _), _ = iterated(b, high + low, [nothing, first], digit)
    return b.emit(rows, DType.I64, lambda *row: s.op("bitxor", load(found, row), _LOWEST), part="last")  # fmt: skip
