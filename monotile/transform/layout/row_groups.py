"""Positions of rows that are grouped by their choice (`group_rows.py`), in blocks of rows with one choice.

chosen[g] = rows that chose g                     first[g]  = blocks of lower choices
rank[t]  = rows before t that chose as it did
place[t] = BLOCK * first[choice(t)] + rank[t]     row[p] = the t with place[t] = p, 0 for none
matrix[b] = choices whose blocks are all before b
where choices ascend with t: shift[g] = BLOCK * first[g] - rows of lower choices, place[t] = t + shift[choice(t)], row[p] = p - shift[matrix]
live     = blocks that have rows, at least one; look-ups of rows are clamped to these, so that no other block is computed (`live/demand.py`)
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    CountTensor,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    binary,
    cast,
    idx,
    mul,
    substitute,
)
from monotile.ir.program import Compute, Ends, compute
from monotile.transform.layout.parts import apart, joined
from monotile.transform.names import Names

BLOCKS = (16, 32, 64, 128)  # rows of a block
MANY = 256  # rows of a choice on average, above which their spread hardly matters
ROOM = 1.5  # rows of a block for each that selects a choice on average: a second block reads the matrix again


class Choice(NamedTuple):
    """The choice of rows: `chosen`, an index below `choices`, at a point of `axes`, those of the rows. ends: the live extent of each
    axis, None for all. test: at a point of `axes`, whether the row is there; None for all. ascends: whether choices never decrease from row to
    row, and rows that are not there come last."""

    chosen: Expr
    axes: tuple[Axis, ...]
    choices: int
    ends: tuple[Ends | None, ...]
    test: Expr | None = None
    ascends: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def rows(self) -> int:
        return math.prod(self.shape)

    @property
    def partial(self) -> bool:
        """Whether there may be fewer rows in a call."""
        return any(self.ends) or self.test is not None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal choices, independent of the axes' names."""
        names: dict[str, Expr] = {
            a.name: Axis(f"row{k}", a.extent) for k, a in enumerate(self.axes)
        }
        test = None if self.test is None else substitute(self.test, names)
        return substitute(self.chosen, names), self.shape, self.choices, self.ends, test

    def test_at(self, at: Sequence[Expr]) -> Expr | None:
        """The test of the row with these indices."""
        if self.test is None:
            return None
        return substitute(self.test, {a.name: i for a, i in zip(self.axes, at, strict=True)})

    def valid(self, choice: Expr) -> Expr:
        """A choice of what may be none."""
        return Binary("max", Binary("min", choice, idx(self.choices - 1)), idx(0))

    def at(self, row: Expr) -> list[Expr]:
        """A row's index along each of the axes."""
        return apart(row, self.shape)

    def flat(self, at: Sequence[Expr]) -> Expr:
        """The row number of these indices."""
        return joined(at, self.shape)

    def of(self, row: Expr) -> Expr:
        """The row's choice; `choices` where there is no such row in the call."""
        at = self.at(row)
        names = {a.name: i for a, i in zip(self.axes, at, strict=True)}
        found = cast(substitute(self.chosen, names), DType.I64)
        if (test := self.test_at(at)) is not None:
            found = Select(test, found, idx(self.choices))
        for i, ends in zip(at, self.ends, strict=True):
            for sign, end in zip(("ge", "lt"), ends or (), strict=False):
                if end is not None:
                    found = Select(Binary(sign, i, Load(end, ())), found, idx(self.choices))
        return found


class Groups(NamedTuple):
    """block: rows of one. row: rows by position; place: positions by row; matrix: the choice by block. live: how many blocks have rows."""

    choice: Choice
    block: int
    row: Tensor
    place: Tensor
    matrix: Tensor
    live: Tensor

    @property
    def blocks(self) -> int:
        return self.matrix.shape[0]

    def place_of(self, at: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Block, and position in it, of a row."""
        where = Load(self.place, (self.choice.flat(at),))
        block = Binary("min", binary("floordiv", where, idx(self.block)), Binary("sub", Load(self.live, ()), idx(1)))  # fmt: skip
        return block, binary("mod", where, idx(self.block))

    def matrix_at(self, block: Expr) -> Expr:
        """The choice of the block's rows: always a valid choice, also after the last block that has rows, where none was computed."""
        return self.choice.valid(Load(self.matrix, (block,)))

    def row_at(self, block: Expr, place: Expr) -> Expr:
        return Load(self.row, (add(mul(block, idx(self.block)), place),))


class _Terms(NamedTuple):
    """The terms of the sums that give the groups. chosen, first, shift, rank, place: tensors of the numbers above; shift[g] is how many
    more positions than rows lower choices have."""

    choice: Choice
    block: int
    chosen: Tensor
    first: Tensor
    shift: Tensor
    rank: Tensor
    place: Tensor

    def chose(self, g: Expr, t: Expr) -> Expr:
        return cast(Binary("eq", self.choice.of(t), g), DType.I64)

    def blocks(self, g: Expr) -> Expr:
        return binary(
            "floordiv", add(Load(self.chosen, (g,)), idx(self.block - 1)), idx(self.block)
        )

    def lower_blocks(self, g: Expr, h: Expr) -> Expr:
        return Select(Binary("lt", h, g), self.blocks(h), idx(0))

    def lower_room(self, g: Expr, h: Expr) -> Expr:
        room = binary("sub", mul(self.blocks(h), idx(self.block)), Load(self.chosen, (h,)))
        return Select(Binary("lt", h, g), room, idx(0))

    def before(self, t: Expr, u: Expr) -> Expr:
        same = Binary("eq", self.choice.of(u), self.choice.of(t))
        return cast(Binary("and", Binary("lt", u, t), same), DType.I64)

    def placed(self, t: Expr, places: int) -> Expr:
        """The position of row `t`, given the number of rows."""
        own = Binary("max", Binary("min", self.choice.of(t), idx(self.choice.choices)), idx(0))
        if self.choice.ascends:
            return add(Load(self.shift, (own,)), t)
        found = add(mul(Load(self.first, (own,)), idx(self.block)), Load(self.rank, (t,)))
        # absent rows come after the others, where there may be no position
        return Binary("min", found, idx(places - 1)) if self.choice.partial else found

    def behind(self, p: Expr, matrix: Tensor) -> Expr:
        """The row at position `p`, where choices ascend."""
        own = self.choice.valid(Load(matrix, (binary("floordiv", p, idx(self.block)),)))
        begun = mul(Load(self.first, (own,)), idx(self.block))
        there = Binary("lt", binary("sub", p, begun), Load(self.chosen, (own,)))
        return Select(there, binary("sub", p, Load(self.shift, (own,))), idx(0))

    def there(self, p: Expr, t: Expr) -> Expr:
        return Select(Binary("eq", Load(self.place, (t,)), p), t, idx(0))

    def passed(self, b: Expr, g: Expr) -> Expr:
        """Whether `b` is after all blocks of `g`."""
        return cast(Binary("le", Load(self.first, (add(g, idx(1)),)), b), DType.I64)


def put_in_groups(choice: Choice, names: Names, origin: str) -> tuple[Groups, list[Compute]]:
    """The groups, and the statements that compute the positions."""
    rows, count = choice.rows, choice.choices

    def tensor(stem: str, extent: int) -> Tensor:
        return Tensor(names.fresh(stem), (extent,), DType.I64)

    def total(out: Tensor, term: Callable[..., Expr], extent: int) -> Compute:
        return compute(out, term, reduce=(extent,), combiner="sum", origin=origin)

    size = next((b for b in BLOCKS if b * count >= ROOM * rows), BLOCKS[-1])
    blocks = min(rows, (rows + count * (size - 1)) // size)
    row, place, matrix = (tensor("row_at", blocks * size), tensor("place_of", rows), tensor("matrix_of", blocks))  # fmt: skip
    live = CountTensor(names.fresh("live_blocks"), (), DType.I64, _usual_blocks(rows, count, size))
    counts, first = tensor("chosen", count), tensor("first_block", count + 1)
    t = _Terms(choice, size, counts, first, tensor("shift", count + 1), tensor("rank", rows), place)
    made = [total(counts, t.chose, rows), total(first, t.lower_blocks, count)]
    if choice.partial:  # all may be absent
        used = Tensor(names.fresh("blocks"), (), DType.I64)
        made.append(total(used, t.blocks, count))
        made.append(compute(live, lambda: Binary("max", Load(used, ()), idx(1)), origin=origin))
    else:
        made.append(total(live, t.blocks, count))
    made += [
        total(t.shift, t.lower_room, count) if choice.ascends else total(t.rank, t.before, rows),
        compute(place, lambda i: t.placed(i, blocks * size), origin=origin),
        total(matrix, t.passed, count),
        compute(row, lambda p: t.behind(p, matrix), origin=origin)
        if choice.ascends
        else total(row, t.there, rows),
    ]
    return Groups(choice, size, row, place, matrix, live), made


def _usual_blocks(rows: int, choices: int, size: int) -> int:
    """The expected number of blocks for rows that choose at random: Poisson's distribution of the rows of a choice, whose last block is
    partly empty."""
    mean = rows / choices
    if mean > MANY:
        return round(rows / size + choices / 2)
    chance, blocks = math.exp(-mean), 0.0
    for n in range(1, rows + 1):
        chance *= mean / n
        blocks += chance * -(-n // size)
    return max(1, round(blocks * choices))
