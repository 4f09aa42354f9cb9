"""Grouped products: sorts rows that each select a matrix into blocks of rows with the same one.

y[t, n] = sum of x[t, k] * w[choice(t), k, n] (a mixture of experts, an adapter for each sequence) reads a matrix for every row. With blocks
of rows that select the same matrix it is a batched matrix product, and each matrix is read once a block (the grouped extents of PIT and of
MoE kernels). The position of a row is computed in the call (`row_groups.py`): after all blocks of lower choices, and the earlier rows of
its own.

    x'[b, r, k] = x[row[BLOCK * b + r], k]            y'[b, r, n] = sum of x'[b, r, k] * w[matrix[b], k, n]

Readers of y[t, n] read y' at place[t]. Element-wise statements between two such products work on blocks too.
"""

import functools
from collections import Counter
from math import prod
from typing import NamedTuple

import msgspec

from monotile.analysis.ascending import ascending
from monotile.analysis.contraction import contraction
from monotile.analysis.states import old_values
from monotile.analysis.uses import Uses
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    NEGATED,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    axes_of,
    cast,
    const,
    loads,
    map_loads,
    mul,
    rebuild,
    substitute,
)
from monotile.ir.program import (
    Compute,
    Live,
    Loop,
    Program,
    Scatter,
    Statement,
    compute,
    statements,
)
from monotile.transform.fusion.inline import element_of
from monotile.transform.layout.row_groups import Choice, Groups, put_in_groups
from monotile.transform.live.demand import demands
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_exprs, with_body
from monotile.transform.simplify.dce import eliminate_dead_code

LEAST_ROWS = 8  # below, hardly any two rows choose the same matrix
LEAST_SIDE = 32  # of a matrix: a smaller one is in a cache when the next row reads it
SHARED = 0.4  # rows for each matrix, from which on several choose the same one


class _Chosen(NamedTuple):
    """A product whose rows select their matrix. rows: the positions of their axes. matrix: the factor that is one of many matrices,
    along dimension `dim` of its Load. other: the factor with the rows. test: which rows are there, None for all; the others are zeros.
    swapped: `matrix` is the body's first factor. several: whether there are so many rows that some select the same matrix."""

    rows: tuple[int, ...]
    matrix: Load
    dim: int
    other: Expr
    test: Expr | None
    swapped: bool
    several: bool

    def times(self, other: Expr, matrix: Expr, dtype: DType) -> Expr:
        """The body's product of two such factors, in the accumulation type."""
        pair = cast(other, dtype), cast(matrix, dtype)
        return mul(*(reversed(pair) if self.swapped else pair))


class _Moved(NamedTuple):
    """A result stored in blocks: `out[block, row, ...]` for `axes` of which `rows` are those of the groups."""

    out: Tensor
    groups: Groups
    rows: tuple[int, ...]


def group_rows(program: Program) -> Program:
    """`program` with such products in blocks, where several rows choose the same matrix."""
    grouping = _Grouping(program)
    if not grouping.found:
        return program
    return eliminate_dead_code(with_body(program, grouping.body(program.body)))


def _direct(c: Compute, chosen: _Chosen) -> Compute:
    """The product reading the original matrices, not a gathered copy of them."""
    other, matrix = (_where(chosen.test, cast(e, c.body.dtype)) for e in (chosen.other, chosen.matrix))  # fmt: skip
    return msgspec.structs.replace(c, body=chosen.times(other, matrix, c.body.dtype))


def _where(test: Expr | None, e: Expr) -> Expr:
    return e if test is None else Select(test, e, const(0, e.dtype))


def _unmasked(c: Compute) -> tuple[Compute, Expr | None]:
    """A product of which some rows are zeros, as if all were there, and the test of those that are; its own and None for another."""
    match c.body:
        case Binary("mul", Select(test, a, Const(0 | 0.0)), Select(other, b, Const(0 | 0.0))) if (
            test == other and axes_of(test) <= {*c.axes}
        ):
            return msgspec.structs.replace(c, body=mul(a, b)), test
        case _:
            return c, None


def _there(e: Expr, test: Expr | None) -> Expr:
    """`e` where `test` holds."""

    def go(x: Expr) -> Expr:
        return go(x.then) if isinstance(x, Select) and x.cond == test else rebuild(x, go)

    return e if test is None else go(e)


def _in_place(e: Expr, known: tuple[Expr, Expr], at: tuple[Expr, Expr]) -> Expr:
    """`e` with block and position of a row, `known`, replaced by those at which it is stored."""

    def go(x: Expr) -> Expr:
        return at[known.index(x)] if x in known else rebuild(x, go)

    return go(e)


def _updated(program: Program) -> frozenset[str]:
    """Tensors updated in place, or by the host: their values are valid for a limited time."""
    found = {*old_values(program), *program.changing}
    for s in statements(program.body):
        if isinstance(s, Scatter):
            found.add(s.base.name)
        elif isinstance(s, Loop):
            found |= {t.name for c in s.carried for t in (c.init, c.param)}
    return frozenset(found)


class _Grouping:
    """found: the products, by name. copies: gathered copies. elementwise: element-wise statements with one reader, in the current body.
    updated: tensors that these may not read. known: existing groups, by the choices from which they follow; also of the enclosing
    bodies."""

    def __init__(self, program: Program) -> None:
        self.program, self.updated = program, _updated(program)
        self.found: dict[str, _Chosen] = {}
        self.copies: dict[str, Compute] = {}
        self.elementwise: dict[str, Compute] = {}
        self.moved: dict[str, _Moved] = {}
        self.known: dict[object, Groups] = {}
        for s in statements(program.body):
            if isinstance(s, Compute):
                self._search(s)

    @functools.cached_property
    def names(self) -> Names:
        return Names(self.program)

    @functools.cached_property
    def made(self) -> dict[str, Compute]:
        """All Computes, by name."""
        return {s.out.name: s for s in statements(self.program.body) if isinstance(s, Compute)}

    @functools.cached_property
    def uses(self) -> Uses:
        return Uses(self.program)

    @functools.cached_property
    def live(self) -> dict[str, list[Live]]:
        """How much of each result is live, by the sizes of the call."""
        return demands(self.program, {}, lambda *_: True).live if self.program.partial else {}

    def _search(self, c: Compute) -> None:
        if isinstance(c.body, Load) and any(map(loads, c.body.index)) and self._lasts(c):
            self.copies[c.out.name] = c
        if (chosen := self._chosen(c)) is not None:
            self.found[c.out.name] = chosen

    def _chosen(self, c: Compute) -> _Chosen | None:
        plain, test = _unmasked(c)
        found = contraction(plain)
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
            own = test is None or axes_of(test) <= {c.axes[p] for p in rows}
            if own and self._fits(c, rows, matrix, dim, other):
                count = prod(c.axes[p].extent for p in rows)
                several = count >= max(LEAST_ROWS, SHARED * matrix.tensor.shape[dim])
                return _Chosen(rows, matrix, dim, other, test, swapped, several)
        return None

    def _lasts(self, c: Compute) -> bool:
        """Whether it could be computed later as well."""
        return not c.live and self.updated.isdisjoint(x.tensor.name for x in loads(c.body))

    def _copied(self, e: Expr) -> Load | None:
        """The Load that `e` is, possibly through a copy."""
        if isinstance(e, Load) and (copy := self.copies.get(e.tensor.name)) is not None:
            e = element_of(copy, e.index)
        return e if isinstance(e, Load) else None

    def _fits(self, c: Compute, rows: tuple[int, ...], matrix: Load, dim: int, other: Expr) -> bool:
        """Whether the choice depends on rows alone, each row has all of the other factor, and grouping is worth it."""
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

    def body(self, body: Body) -> Body:
        """The statements with those that group rows, and readers that look up block and position."""
        before = dict(self.known)
        alone = Counter(
            x.tensor.name for s in body if isinstance(s, Compute) for x in loads(s.body)
        )
        out: list[Statement] = []
        for s in body:
            s = map_exprs(map_bodies(s, self.body), self._reads)
            if isinstance(s, Compute) and (chosen := self.found.get(s.out.name)):
                matrix, other = self._reads(chosen.matrix), self._reads(chosen.other)
                assert isinstance(matrix, Load)
                chosen = chosen._replace(matrix=matrix, other=self._through(other))
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
        """`e` with loads of tensors that are stored in blocks adapted."""

        def place(x: Load) -> Expr:
            moved = self.moved.get(x.tensor.name)
            if moved is None:
                return x
            at = [x.index[p] for p in moved.rows]
            rest = (i for p, i in enumerate(x.index) if p not in moved.rows)
            y = Load(moved.out, (*moved.groups.place_of(at), *rest))
            return _where(moved.groups.choice.test_at(at), y)

        return map_loads(e, place)

    def _in_blocks(self, c: Compute, chosen: _Chosen) -> list[Statement]:
        """The product in blocks, after the statements that it needs."""
        groups, new = self._groups(c, chosen)
        blocks, size = groups.blocks, groups.block
        columns = [a for p, a in enumerate(c.axes) if p not in chosen.rows]
        rows = [c.axes[p].name for p in chosen.rows]

        def given(b: Expr, r: Expr, *k: Expr) -> Expr:
            where = groups.choice.at(groups.row_at(b, r))
            at = dict(zip(rows, where, strict=True))
            at |= {a.name: i for a, i in zip(c.reduce, k, strict=True)}
            found = _there(substitute(chosen.other, at), groups.choice.test_at(where))
            return _in_place(found, groups.place_of(where), (b, r))

        extents = [a.extent for a in c.reduce]
        x = self._tensor("rows_in_blocks", (blocks, size, *extents), chosen.other.dtype)
        copied = compute(x, given, origin=c.origin)
        y = self._tensor(f"{c.out.name}_in_blocks", (blocks, size, *(a.extent for a in columns)), c.out.dtype)  # fmt: skip

        def term(b: Expr, r: Expr, *rest: Expr) -> Expr:
            n, k = rest[: len(columns)], rest[len(columns) :]
            at = {a.name: i for a, i in zip((*columns, *c.reduce), (*n, *k), strict=True)}
            index = [substitute(i, at) for i in chosen.matrix.index]
            index[chosen.dim] = groups.matrix_at(b)
            matrix = Load(chosen.matrix.tensor, tuple(index))
            return chosen.times(Load(x, (b, r, *k)), matrix, c.body.dtype)

        product = compute(y, term, reduce=tuple(extents), combiner="sum", origin=c.origin)
        self.moved[c.out.name] = _Moved(y, groups, chosen.rows)
        new += [copied, product]
        if c.out.name in self.uses.whole:
            new.append(msgspec.structs.replace(c, reduce=(), combiner=None, body=self._reads(Load(c.out, c.axes))))  # fmt: skip
        return new

    def _through(self, e: Expr) -> Expr:
        """`e` with its single-use element-wise operands inlined."""
        if not isinstance(e, Load) or (maker := self.elementwise.get(e.tensor.name)) is None:
            return e
        return element_of(maker, e.index)

    def _groups(self, c: Compute, chosen: _Chosen) -> tuple[Groups, list[Statement]]:
        """The groups, and the statements that compute them if they are new."""
        known: dict[Axis, Live] = {x.axis: x for x in self.live.get(c.out.name, [])}
        axes = tuple(c.axes[p] for p in chosen.rows)
        ends = tuple(x.ends if (x := known.get(a)) else None for a in axes)
        matrix, dim = chosen.matrix, chosen.dim
        first = all(e is None or e[0] is None for e in ends)  # others choose no matrix, after all
        ascends = len(axes) == 1 and first and ascending(matrix.index[dim], axes[0], self.made)
        ascends = ascends and (chosen.test is None or self._first(chosen.test, axes[0]))
        choice = Choice(
            matrix.index[dim], axes, matrix.tensor.shape[dim], ends, chosen.test, ascends
        )
        if choice.key in self.known:
            return self.known[choice.key], []
        groups, made = put_in_groups(choice, self.names, c.origin)
        self.known[choice.key] = groups
        return groups, [*made]

    def _first(self, test: Expr, axis: Axis) -> bool:
        """Whether a test holds for the first rows alone."""
        match test:
            case Binary(op, a, b) if op in NEGATED:
                absent = Cast(Binary(NEGATED[op], a, b), DType.I64)
                return ascending(absent, axis, self.made)
            case _:
                return False

    def _tensor(self, stem: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        return Tensor(self.names.fresh(stem), shape, dtype)
