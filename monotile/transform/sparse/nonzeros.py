"""Lists of the true entries in each row of a mask, computed by the kernel, in order.

within[row, k]  = how many are true of its chunk up to k      chunk[row, c] = how many of chunk c
upto[row, c]    = how many up to the end of chunk c           count[row]    = all of them
list[row, j]    = the k of number j: found by bisection; 0 for j beyond them
"""

from collections.abc import Callable, Sequence

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Binary,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    binary,
    cast,
    const,
    idx,
    mul,
)
from monotile.ir.program import Compute, compute
from monotile.transform.names import Names

Mask = Callable[[Sequence[Expr], Expr], Expr]  # whether position k of a row counts


class Nonzeros:
    """The positions at which `mask` is true along `extent`, of each row of `rows`. made: the statements that compute `count` and
    `positions`."""

    def __init__(
        self, rows: Sequence[int], extent: int, mask: Mask, names: Names, origin: str
    ) -> None:
        self._rows, self._extent, self._mask = tuple(rows), extent, mask
        self._names, self._origin = names, origin
        self.made: list[Compute] = []
        # `within` and `upto` together add up least for the cube root of twice the extent.
        self._size = 1 << (round((2 * extent) ** (1 / 3)).bit_length() - 1)
        self._chunks = -(-extent // self._size)
        within = self._emit("within", (extent,), self._within, DType.I32, self._size)
        chunk = self._emit("chunk", (self._chunks,), self._chunk, DType.I32, self._size)
        upto = self._emit("upto", (self._chunks,), self._upto(chunk), DType.I32, self._chunks)
        last = idx(self._chunks - 1)

        def count(*row: Expr) -> Expr:
            return cast(Load(upto, (*row, last)), DType.I64)

        self.count = self._emit("nonzeros", (), count)
        self._positions = self._bisect(within, chunk, upto)

    def position(self, row: Sequence[Expr], j: Expr) -> Expr:
        """The position of number j, where there is one; else any."""
        return self._inside(Load(self._positions, (*row, j)))

    def _inside(self, position: Expr) -> Expr:
        """Clamped to the row, so that no check separates one look-up from the next: the value is known to be in range."""
        return binary(
            "min", binary("max", cast(position, DType.I64), idx(0)), idx(self._extent - 1)
        )

    def _emit(
        self,
        name: str,
        shape: Sequence[int],
        body: Callable[..., Expr],
        dtype: DType = DType.I64,
        terms: int = 0,
    ) -> Tensor:
        out = Tensor(self._names.fresh(name), (*self._rows, *shape), dtype)
        reduce, combiner = ((terms,), "sum") if terms else ((), None)
        self.made.append(compute(out, body, reduce=reduce, combiner=combiner, origin=self._origin))
        return out

    def _one(self, row: Sequence[Expr], k: Expr, condition: Expr) -> Expr:
        """1 where `k` counts and the condition holds; the condition is tested first where `k` may be beyond the row."""
        sides = [self._mask(row, k), condition]
        inside = Binary("and", *(sides if self._extent % self._size == 0 else reversed(sides)))
        return Select(inside, const(1, DType.I32), const(0, DType.I32))

    def _start(self, k: Expr) -> Expr:
        return mul(binary("floordiv", k, idx(self._size)), idx(self._size))

    def _within(self, *axes: Expr) -> Expr:
        *row, k, u = axes
        return self._one(row, add(self._start(k), u), Binary("le", u, binary("mod", k, idx(self._size))))  # fmt: skip

    def _chunk(self, *axes: Expr) -> Expr:
        *row, c, u = axes
        k = add(mul(c, idx(self._size)), u)
        return self._one(row, k, Binary("lt", k, idx(self._extent)))

    def _upto(self, chunk: Tensor) -> Callable[..., Expr]:
        def body(*axes: Expr) -> Expr:
            *row, c, r = axes
            return Select(Binary("le", r, c), Load(chunk, (*row, r)), const(0, DType.I32))

        return body

    def _bisect(self, within: Tensor, chunk: Tensor, upto: Tensor) -> Tensor:
        """How many positions have no more than j true ones up to them: the position of number j."""
        found: Tensor | None = None
        step = 1 << max(0, self._extent.bit_length() - 1)
        while step:

            def body(*axes: Expr, step: int = step, found: Tensor | None = found) -> Expr:
                *row, j = axes
                at = idx(0) if found is None else self._inside(Load(found, axes))
                seen = binary("min", add(at, idx(step - 1)), idx(self._extent - 1))
                c = binary("floordiv", seen, idx(self._size))
                before = Binary("sub", Load(upto, (*row, c)), Load(chunk, (*row, c)))
                total = Binary("add", before, Load(within, (*row, seen)))
                fits = Binary("le", add(at, idx(step)), idx(self._extent))
                low = Binary("le", cast(total, DType.I64), j)
                there = Binary("lt", j, Load(self.count, tuple(row)))
                both = Binary("and", there, Binary("and", fits, low))
                return cast(add(at, Select(both, idx(step), idx(0))), DType.I32)

            found = self._emit("position", (self._extent,), body, DType.I32)
            step //= 2
        assert found is not None
        return found
