"""Where rows lie that are put in groups by what they choose (`group_rows.py`): blocks of rows with one choice.

count[g] = rows that chose g                      rank[t] = rows before t that chose as it did
place[t] = BLOCK * (blocks of lower choices) + rank[t]
row[p]   = the t with place[t] = p, 0 for none    matrix[b] = choice(row[BLOCK * b])
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
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
from monotile.transform.names import Names

BLOCKS = (16, 32, 64, 128)  # rows of a block
ROOM = 1.5  # rows of a block for each that makes a choice on average: a second block reads the matrix again


class Choice(NamedTuple):
    """What rows choose: `chosen`, an index below `choices`, at a point of `axes`, those of the rows. ends: how much of each axis there is, None for all."""

    chosen: Expr
    axes: tuple[Axis, ...]
    choices: int
    ends: tuple[Ends | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def rows(self) -> int:
        return prod(self.shape)

    @property
    def partial(self) -> bool:
        """Whether there may be fewer rows in a call."""
        return any(self.ends)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal choices, whatever the axes' names."""
        names: dict[str, Expr] = {
            a.name: Axis(f"row{k}", a.extent) for k, a in enumerate(self.axes)
        }
        return substitute(self.chosen, names), self.shape, self.choices, self.ends

    def at(self, row: Expr) -> list[Expr]:
        """A row's number along each of the axes."""
        found: list[Expr] = []
        step = self.rows
        for extent in self.shape:
            step //= extent
            outer = binary("floordiv", row, idx(step))
            found.append(binary("mod", outer, idx(extent)) if found else outer)
        return found

    def flat(self, at: Sequence[Expr]) -> Expr:
        """The row of these numbers."""
        row: Expr = idx(0)
        for i, extent in zip(at, self.shape, strict=True):
            row = add(mul(row, idx(extent)), i)
        return row

    def of(self, row: Expr) -> Expr:
        """What it chooses; beyond all choices where there is no such row in the call."""
        at = self.at(row)
        names = {a.name: i for a, i in zip(self.axes, at, strict=True)}
        found = cast(substitute(self.chosen, names), DType.I64)
        for i, ends in zip(at, self.ends, strict=True):
            for sign, end in zip(("ge", "lt"), ends or (), strict=False):
                if end is not None:
                    found = Select(Binary(sign, i, Load(end, ())), found, idx(self.choices))
        return found


class Groups(NamedTuple):
    """block: rows of one. row: rows by place; place: places by row; matrix: the choice by block."""

    choice: Choice
    block: int
    row: Tensor
    place: Tensor
    matrix: Tensor

    @property
    def blocks(self) -> int:
        return self.matrix.shape[0]

    def place_of(self, at: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Block, and place in it, of a row."""
        where = Load(self.place, (self.choice.flat(at),))
        return binary("floordiv", where, idx(self.block)), binary("mod", where, idx(self.block))

    def row_at(self, block: Expr, place: Expr) -> Expr:
        return Load(self.row, (add(mul(block, idx(self.block)), place),))


def put_in_groups(choice: Choice, names: Names, origin: str) -> tuple[Groups, list[Compute]]:
    """The groups, and what finds out where they are."""
    rows, count = choice.rows, choice.choices

    def tensor(stem: str, extent: int) -> Tensor:
        return Tensor(names.fresh(stem), (extent,), DType.I64)

    size = next((b for b in BLOCKS if b * count >= ROOM * rows), BLOCKS[-1])
    blocks = min(rows, (rows + count * (size - 1)) // size)
    row, place, matrix = (tensor("row_at", blocks * size), tensor("place_of", rows), tensor("matrix_of", blocks))  # fmt: skip
    groups = Groups(choice, size, row, place, matrix)
    counts, ranks = tensor("chosen", count), tensor("rank", rows)
    unbound = tensor("place", rows) if choice.partial else place

    def total(out: Tensor, body: Callable[..., Expr], extent: int) -> Compute:
        return compute(out, body, reduce=(extent,), combiner="sum", origin=origin)

    def chose(g: Expr, t: Expr) -> Expr:
        return cast(Binary("eq", choice.of(t), g), DType.I64)

    def before(t: Expr, u: Expr) -> Expr:
        same = Binary("eq", choice.of(u), choice.of(t))
        return cast(Binary("and", Binary("lt", u, t), same), DType.I64)

    def lower(t: Expr, g: Expr) -> Expr:
        """What choice `g` adds to the place of row t."""
        full = binary("floordiv", add(Load(counts, (g,)), idx(size - 1)), idx(size))
        ahead = Select(Binary("lt", g, choice.of(t)), mul(full, idx(size)), idx(0))
        return add(ahead, Select(Binary("eq", g, idx(0)), Load(ranks, (t,)), idx(0)))

    def there(p: Expr, t: Expr) -> Expr:
        return Select(Binary("eq", Load(unbound, (t,)), p), t, idx(0))

    made = [total(counts, chose, rows), total(ranks, before, rows), total(unbound, lower, count)]
    if choice.partial:  # rows that are not there lie behind the others, where there may be no place
        last = idx(blocks * size - 1)
        made.append(compute(place, lambda t: binary("min", Load(unbound, (t,)), last), origin=origin))  # fmt: skip
    made.append(total(row, there, rows))
    made.append(
        compute(
            matrix,
            lambda b: binary("min", choice.of(groups.row_at(b, idx(0))), idx(count - 1)),
            origin=origin,
        )
    )
    return groups, made
