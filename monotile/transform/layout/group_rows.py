"""Rows that each choose their matrix, put side by side in groups of those that chose the same one.

y[t, n] = sum of x[t, k] * w[choice(t), k, n] (a mixture of experts, an adapter for each sequence) reads a matrix for every row. In blocks of
rows with one choice it is a batch of matrix products, and each matrix is read once a block (the grouped extents of PIT and of MoE
kernels). Where a row lies follows from the choices, in the call: behind all blocks of lower choices, and the earlier rows of its own.

    count[g] = rows that chose g                      rank[t] = rows before t that chose as it did
    place[t] = BLOCK * (blocks of lower choices) + rank[t]
    row[p]   = the t with place[t] = p, 0 for none    matrix[b] = choice(row[BLOCK * b])
    x'[b, r, k] = x[row[BLOCK * b + r], k]            y'[b, r, n] = sum of x'[b, r, k] * w[matrix[b], k, n]

Whoever reads y[t, n] reads y' at place[t]. What is computed element by element between two such products stays in blocks.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import msgspec

from monotile.analysis.contraction import contraction
from monotile.analysis.uses import Uses
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    axes_of,
    binary,
    cast,
    idx,
    loads,
    map_loads,
    mul,
    rebuild,
    substitute,
)
from monotile.ir.program import (
    Compute,
    Ends,
    Live,
    Loop,
    Program,
    Scatter,
    Statement,
    compute,
    statements,
    updates,
)
from monotile.transform.live.demand import demands
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_exprs, with_body
from monotile.transform.simplify.dce import eliminate_dead_code

LEAST_ROWS = 8  # below, hardly any two rows choose the same matrix
LEAST_SIDE = 32  # of a matrix: a smaller one is in a cache when the next row reads it
SHARED = 0.4  # rows for each matrix, from which on several choose the same one
BLOCKS = (16, 32, 64)  # rows of a block


class _Chosen(NamedTuple):
    """A product whose rows choose their matrix. rows: the positions of their axes. matrix: the factor that is one of `choices` matrices by
    dimension `dim` of its Load. other: the factor with the rows. swapped: `matrix` is the body's first factor. several: whether there are so many rows that some choose the same matrix. ends: how
    much of each axis of the rows there is, None for all."""

    rows: tuple[int, ...]
    matrix: Load
    dim: int
    other: Expr
    swapped: bool
    several: bool
    ends: tuple[Ends | None, ...]

    @property
    def choices(self) -> int:
        return self.matrix.tensor.shape[self.dim]


class _Groups(NamedTuple):
    """Where rows lie. shape: of their axes. block: rows of one. row: rows by place; place: places by row; matrix: by block."""

    shape: tuple[int, ...]
    block: int
    row: Tensor
    place: Tensor
    matrix: Tensor

    def at(self, row: Expr) -> list[Expr]:
        """A row's number along each of its axes."""
        found: list[Expr] = []
        step = prod(self.shape)
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


class _Moved(NamedTuple):
    """A result that lies in blocks: `out[block, row, ...]` for `axes` of which `rows` are those of the groups."""

    out: Tensor
    groups: _Groups
    rows: tuple[int, ...]


def group_rows(program: Program) -> Program:
    """`program` with such products in blocks, where several rows choose the same matrix."""
    grouping = _Grouping(program)
    if not grouping.found:
        return program
    return eliminate_dead_code(with_body(program, grouping.body(program.body)))


def _direct(c: Compute, chosen: _Chosen) -> Compute:
    """The product with the matrices where they lie, not a copy of those that are chosen."""
    pair = (cast(chosen.other, c.body.dtype), cast(chosen.matrix, c.body.dtype))
    return msgspec.structs.replace(c, body=mul(*(reversed(pair) if chosen.swapped else pair)))


def _updated(program: Program) -> frozenset[str]:
    """What is updated in place, so that it is there for a time only."""
    found: set[str] = {t.name for u in updates(program) for t in u.old}
    for s in statements(program.body):
        if isinstance(s, Scatter):
            found.add(s.base.name)
        elif isinstance(s, Loop):
            found |= {t.name for c in s.carried for t in (c.init, c.param)}
    return frozenset(found)


class _Grouping:
    """found: the products, by name. copies: of what is read where data says. elementwise: what is computed so for one reader, in the body at
    hand. updated: what these may not read. known: groups that are there already, by what they follow from; of the bodies around as well."""

    def __init__(self, program: Program) -> None:
        self.names, self.uses = Names(program), Uses(program)
        self.live = demands(program, {}, lambda *_: True).live if program.partial else {}
        self.updated = _updated(program)
        self.found: dict[str, _Chosen] = {}
        self.copies: dict[str, Compute] = {}
        self.elementwise: dict[str, Compute] = {}
        self.moved: dict[str, _Moved] = {}
        self.known: dict[object, _Groups] = {}
        self._search(program.body)

    def _search(self, body: Body) -> None:
        for s in body:
            if isinstance(s, Compute):
                if isinstance(s.body, Load) and any(map(loads, s.body.index)) and self._lasts(s):
                    self.copies[s.out.name] = s
                chosen = self._chosen(s)
                if chosen is not None:
                    self.found[s.out.name] = chosen
            map_bodies(s, self._look)

    def _look(self, body: Body) -> Body:
        self._search(body)
        return body

    def _chosen(self, c: Compute) -> _Chosen | None:
        found = contraction(c)
        if found is None or c.live:
            return None
        first, second = (found.right, found.left) if found.swapped else (found.left, found.right)
        for swapped, matrix, other in ((False, second, first), (True, first, second)):
            matrix = self._copied(matrix)
            if matrix is None or matrix.tensor.name in self.found:
                continue
            gathers = [p for p, i in enumerate(matrix.index) if loads(i)]
            if len(gathers) != 1:
                continue
            (dim,) = gathers
            rows = tuple(p for p, a in enumerate(c.axes) if a in axes_of(matrix.index[dim]))
            if self._fits(c, rows, matrix, dim, other):
                count = prod(c.axes[p].extent for p in rows)
                several = count >= max(LEAST_ROWS, SHARED * matrix.tensor.shape[dim])
                return _Chosen(rows, matrix, dim, other, swapped, several, self._ends(c, rows))
        return None

    def _lasts(self, c: Compute) -> bool:
        """Whether it could be computed later as well."""
        return not c.live and self.updated.isdisjoint(x.tensor.name for x in loads(c.body))

    def _copied(self, e: Expr) -> Load | None:
        """The Load that `e` is, by way of a copy."""
        if not isinstance(e, Load) or (copy := self.copies.get(e.tensor.name)) is None:
            return e if isinstance(e, Load) else None
        found = substitute(copy.body, {a.name: i for a, i in zip(copy.axes, e.index, strict=True)})
        assert isinstance(found, Load)
        return found

    def _fits(self, c: Compute, rows: tuple[int, ...], matrix: Load, dim: int, other: Expr) -> bool:
        """Whether rows alone choose, and each has the whole of one side, which is worth it."""
        own = {c.axes[p] for p in rows}
        rest = {a for i in matrix.index[:dim] + matrix.index[dim + 1 :] for a in axes_of(i)}
        columns = [a for p, a in enumerate(c.axes) if p not in rows]
        chooses = axes_of(matrix.index[dim])
        if not rows or chooses & {*c.reduce, *columns} or own & rest or axes_of(other) & {*columns}:
            return False
        sides = prod(a.extent for a in columns), prod(a.extent for a in c.reduce)
        needed = {a for a in columns if a.extent > 1}
        whole = needed <= rest and {*c.reduce} <= rest & axes_of(other)
        return whole and min(sides) >= LEAST_SIDE

    def _ends(self, c: Compute, rows: Sequence[int]) -> tuple[Ends | None, ...]:
        known: dict[Axis, Live] = {x.axis: x for x in self.live.get(c.out.name, [])}
        return tuple(x.ends if (x := known.get(c.axes[p])) else None for p in rows)

    def body(self, body: Body) -> Body:
        """With the statements that put rows in groups, and readers that look there."""
        before = dict(self.known)
        alone = Counter(
            x.tensor.name for s in body if isinstance(s, Compute) for x in loads(s.body)
        )
        out: list[Statement] = []
        for s in body:
            s = map_exprs(map_bodies(s, self.body), self._reads)
            if isinstance(s, Compute) and (chosen := self.found.get(s.out.name)):
                matrix, other = self._reads(chosen.matrix), self._through(chosen.other)
                assert isinstance(matrix, Load)
                chosen = chosen._replace(matrix=matrix, other=self._reads(other))
                out += self._in_blocks(s, chosen) if chosen.several else [_direct(s, chosen)]
                continue
            if isinstance(s, Compute) and s.combiner is None and self._lasts(s):
                name = s.out.name
                if alone[name] == self.uses.readers[name] == 1 and name not in self.uses.whole:
                    self.elementwise[name] = s
            out.append(s)
        self.known = before
        return tuple(out)

    def _reads(self, e: Expr) -> Expr:
        """`e` where what it loads lies in blocks now."""

        def place(x: Load) -> Expr:
            moved = self.moved.get(x.tensor.name)
            if moved is None:
                return x
            row = moved.groups.flat([x.index[p] for p in moved.rows])
            rest = [i for p, i in enumerate(x.index) if p not in moved.rows]
            where = Load(moved.groups.place, (row,))
            size = moved.groups.block
            return Load(
                moved.out,
                (binary("floordiv", where, idx(size)), binary("mod", where, idx(size)), *rest),
            )

        return map_loads(e, place)

    def _in_blocks(self, c: Compute, chosen: _Chosen) -> list[Statement]:
        """The product in blocks, with what is before it."""
        shape = tuple(c.axes[p].extent for p in chosen.rows)
        new: list[Statement] = []
        groups = self._groups(c, chosen, shape, new)
        blocks, size = groups.matrix.shape[0], groups.block
        columns = [a for p, a in enumerate(c.axes) if p not in chosen.rows]
        rows = {c.axes[p].name: n for n, p in enumerate(chosen.rows)}

        def given(b: Expr, r: Expr, *k: Expr) -> Expr:
            row = Load(groups.row, (add(mul(b, idx(size)), r),))
            at: dict[str, Expr] = {name: groups.at(row)[n] for name, n in rows.items()}
            at |= {a.name: i for a, i in zip(c.reduce, k, strict=True)}
            return self._in_place(substitute(chosen.other, at), groups, row, (b, r))

        extents = [a.extent for a in c.reduce]
        x = self._tensor("rows_in_blocks", (blocks, size, *extents), chosen.other.dtype)
        copied = compute(x, given, origin=c.origin)
        y = self._tensor(f"{c.out.name}_in_blocks", (blocks, size, *(a.extent for a in columns)), c.out.dtype)  # fmt: skip

        def term(b: Expr, r: Expr, *rest: Expr) -> Expr:
            n, k = rest[: len(columns)], rest[len(columns) :]
            at = {a.name: i for a, i in zip((*columns, *c.reduce), (*n, *k), strict=True)}
            index = [substitute(i, at) for i in chosen.matrix.index]
            index[chosen.dim] = Load(groups.matrix, (b,))
            pair = (
                cast(Load(x, (b, r, *k)), c.body.dtype),
                cast(Load(chosen.matrix.tensor, tuple(index)), c.body.dtype),
            )
            return mul(*(reversed(pair) if chosen.swapped else pair))

        product = compute(y, term, reduce=tuple(extents), combiner="sum", origin=c.origin)
        self.moved[c.out.name] = _Moved(y, groups, chosen.rows)
        new += [copied, product]
        if c.out.name in self.uses.whole:
            new.append(msgspec.structs.replace(c, reduce=(), combiner=None, body=self._reads(Load(c.out, c.axes))))  # fmt: skip
        return new

    def _through(self, e: Expr) -> Expr:
        """`e` with what is computed element by element for it alone in its place."""
        if not isinstance(e, Load) or (maker := self.elementwise.get(e.tensor.name)) is None:
            return e
        at = {a.name: i for a, i in zip(maker.axes, e.index, strict=True)}
        return cast(substitute(maker.body, at), e.dtype)

    def _in_place(self, e: Expr, groups: _Groups, row: Expr, at: tuple[Expr, Expr]) -> Expr:
        """`e`, in which the place of the row that lies `at` a place is that place."""
        where = add(mul(at[0], idx(groups.block)), at[1])
        known = groups.flat(groups.at(row))

        def go(x: Expr) -> Expr:
            if isinstance(x, Load) and x.tensor == groups.place and x.index == (known,):
                return where
            return rebuild(x, go)

        def folded(x: Expr) -> Expr:
            match x:
                case Binary("floordiv", y, _) if y == where:
                    return at[0]
                case Binary("mod", y, _) if y == where:
                    return at[1]
                case _:
                    return rebuild(x, folded)

        return folded(go(e))

    def _groups(
        self, c: Compute, chosen: _Chosen, shape: tuple[int, ...], new: list[Statement]
    ) -> _Groups:
        count, choices = prod(shape), chosen.choices
        names = [c.axes[p].name for p in chosen.rows]
        choice = chosen.matrix.index[chosen.dim]
        in_order = substitute(choice, {n: Axis(f"row{k}", e) for k, (n, e) in enumerate(zip(names, shape, strict=True))})  # fmt: skip
        key = in_order, shape, choices, chosen.ends
        if key in self.known:
            return self.known[key]
        size = next((b for b in BLOCKS if b * choices >= count), BLOCKS[-1])
        blocks = min(count, (count + choices * (size - 1)) // size)
        groups = _Groups(
            shape,
            size,
            self._tensor("row_at", (blocks * size,), DType.I64),
            self._tensor("place_of", (count,), DType.I64),
            self._tensor("matrix_of", (blocks,), DType.I64),
        )
        dead = any(chosen.ends)
        counts = self._tensor("chosen", (choices,), DType.I64)
        ranks = self._tensor("rank", (count,), DType.I64)

        def of(t: Expr) -> Expr:
            """What row t chooses; beyond all choices where it is dead."""
            at = groups.at(t)
            found = cast(substitute(choice, dict(zip(names, at, strict=True))), DType.I64)
            for i, ends in zip(at, chosen.ends, strict=True):
                for sign, end in zip(("ge", "lt"), ends or (), strict=False):
                    if end is not None:
                        found = Select(Binary(sign, i, Load(end, ())), found, idx(choices))
            return found

        def one(x: Expr) -> Expr:
            return cast(x, DType.I64)

        def lower(t: Expr, g: Expr) -> Expr:
            """What choice `g` adds to the place of row t."""
            padded = mul(binary("floordiv", add(Load(counts, (g,)), idx(size - 1)), idx(size)), idx(size))  # fmt: skip
            before = Select(Binary("lt", g, of(t)), padded, idx(0))
            return add(before, Select(Binary("eq", g, idx(0)), Load(ranks, (t,)), idx(0)))

        def same(t: Expr, u: Expr) -> Expr:
            return one(Binary("and", Binary("lt", u, t), Binary("eq", of(u), of(t))))

        def total(out: Tensor, body: Callable[..., Expr], extent: int) -> Compute:
            return compute(out, body, reduce=(extent,), combiner="sum", origin=c.origin)

        place = self._tensor("place", (count,), DType.I64) if dead else groups.place
        new += [
            total(counts, lambda g, t: one(Binary("eq", of(t), g)), count),
            total(ranks, same, count),
            total(place, lower, choices),
        ]
        if dead:  # such rows lie behind the others, where there may be no place
            last = idx(blocks * size - 1)
            new.append(compute(groups.place, lambda t: binary("min", Load(place, (t,)), last), origin=c.origin))  # fmt: skip

        def row(p: Expr, t: Expr) -> Expr:
            return Select(Binary("eq", Load(place, (t,)), p), t, idx(0))

        def matrix(b: Expr) -> Expr:
            first = Load(groups.row, (mul(b, idx(size)),))
            return binary("min", of(first), idx(choices - 1)) if dead else of(first)

        new += [
            total(groups.row, row, count),
            compute(groups.matrix, matrix, origin=c.origin),
        ]
        self.known[key] = groups
        return groups

    def _tensor(self, stem: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        return Tensor(self.names.fresh(stem), shape, dtype)
