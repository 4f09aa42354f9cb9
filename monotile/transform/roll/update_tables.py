"""States of rolled layers, updated in place.

Rolling gathers the layers' states in a table of pointers. An iteration reads its row, computes its new value and stacks the result;
after the loop each row of the stack is some state's new value. That moves every cache in and out of the loop, and takes statements for
each layer. This pass makes the loop carry the table itself: each iteration updates its own row, Scatter by Scatter, or all of it. So do
the enclosing loops, and layers that are not rolled update their rows before, between and after. The table is then one state, under the
name of its tensor.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

import msgspec

from monotile.analysis.rows import copied_row
from monotile.analysis.uses import mentioned, mentions, references
from monotile.ir.expr import Axis, Expr, Load, Tensor, idx, loads, map_loads, substitute
from monotile.ir.program import (
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    Weight,
    defined,
    expressions,
    statements,
    updates,
)
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_exprs
from monotile.transform.roll.made_rows import (
    Made,
    Stacked,
    affine,
    iterations,
    made,
    stacks_of,
    value_of_index,
)
from monotile.transform.simplify.dce import eliminate_dead_code


class Write(msgspec.Struct, frozen=True):
    """`value`, computed inside loops with `axes`, becomes row `row` of a table. stacks: of it, see `stacks_of`. chain: the Scatters that
    compute it from `copy`, which is a copy of that row; empty: it is computed in another way."""

    value: Tensor
    row: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    stacks: tuple[Stacked, ...]
    chain: tuple[Scatter, ...] = ()
    copy: Compute | None = None


def update_tables(program: Program) -> Program:
    """`program` with loops that carry tables of states where all rows of one are computed in them, or beside them."""
    by_value: dict[str, dict[str, Made]] = {}
    for u in updates(program):
        found = made(program.body, u.result)
        if found is not None:
            by_value.setdefault(found.value.name, {})[u.name] = found
    for rows in by_value.values():
        if next(iter(rows.values())).loops:
            new = _updated(program, rows, by_value)
            if new is not None:
                return update_tables(new)
    return program


def _updated(
    program: Program, rows: Mapping[str, Made], by_value: Mapping[str, Mapping[str, Made]]
) -> Program | None:
    """`program` with the table of the states `rows`, which are computed as one value, updated in place; None where that is not possible."""
    names = Names(program)
    weights, table = _table(program, rows, names)
    if table is None:
        return None
    sources = [r for r in by_value.values() if not _parts(table).isdisjoint(r)]
    if sum(len(r) for r in sources) != len(table.parts):
        return None
    writes = [_write(program, table, r) for r in sources]
    if any(w is None for w in writes):
        return None
    every = {w.value.name: w for w in writes if w is not None}
    if not _reads_before_writes(program, table, every):
        return None
    writer = _Writer(table.tensor, every, names)
    body, new = writer.body(program.body, table.tensor)
    parts = _parts(table)
    kept = [u for u in updates(program) if u.name not in parts]
    done = msgspec.structs.replace(
        program,
        weights=weights,
        body=body,
        outputs=(*program.results, *(u.result for u in kept), new),
        states=(*(u.name for u in kept), table.tensor.name),
    )
    done = eliminate_dead_code(done)
    return None if any(mentions(done)[n] for n in writer.gone) else done


def _parts(table: Weight) -> frozenset[str]:
    return frozenset(table.parts)


def _table(
    program: Program, rows: Mapping[str, Made], names: Names
) -> tuple[tuple[Weight, ...], Weight | None]:
    """The weights, with one whose parts include `rows`: an existing one, or a new one of single weights that have no readers. All its
    parts are states, and have no other users."""
    states = set(program.states)
    counts, loaded = mentions(program), references(program.body)[1]
    holders = [w for w in program.weights if not _parts(w).isdisjoint(rows)]
    if len(holders) == 1 and holders[0].table and states.issuperset(holders[0].parts):
        only = counts[holders[0].tensor.name] == loaded[holders[0].tensor.name]
        return program.weights, holders[0] if only else None
    first = holders[0].tensor if holders else None
    if first is None or len(holders) != len(rows) or any(
        w.table or (w.tensor.shape, w.tensor.dtype) != (first.shape, first.dtype) or counts[w.tensor.name]
        for w in holders
    ):  # fmt: skip
        return program.weights, None
    inside = next(iter(rows.values())).loops
    extents = tuple(loop.axis.extent for loop in inside)
    in_order = sorted(rows, key=lambda n: rows[n].at)
    if prod(extents) != len(in_order):
        return program.weights, None
    tensor = Tensor(names.fresh(f"{first.name}_all"), (*extents, *first.shape), first.dtype)
    made_here = Weight(tensor, tuple(in_order), len(extents))
    return (*(w for w in program.weights if w not in holders), made_here), made_here


def _write(program: Program, table: Weight, rows: Mapping[str, Made]) -> Write | None:
    """How the states `rows`, all computed as one value, are written to the table; None where not all iterations compute one, or the rows
    are irregular."""
    first = next(iter(rows.values()))
    axes = tuple(loop.axis for loop in first.loops)
    extents = table.tensor.shape[: table.table]
    where = dict(zip(table.parts, product(*(range(n) for n in extents)), strict=True))
    at = {m.at: where[name] for name, m in rows.items()}
    if len(at) != prod(a.extent for a in axes) or len(at) != len(rows):
        return None
    row = affine(axes, at)
    if row is None:
        return None
    body = first.loops[-1].body if first.loops else program.body
    chain, copy = _chain(body, first.value, table, axes, at)
    counts, loaded = mentions(program), references(program.body)[1]
    inner = (*(s.out.name for s in chain[:-1]), *(() if copy is None else (copy.out.name,)))
    name = first.value.name
    stacks = stacks_of(first.value, first.loops)
    goes = sum(k.value.name == name for k in first.loops[-1].stacked) if first.loops else 1
    if any(counts[n] != 1 for n in inner) or counts[name] != loaded[name] + goes:
        chain, copy = (), None
    return Write(first.value, row, axes, stacks, chain, copy)


def _chain(
    body: Body, value: Tensor, table: Weight, axes: tuple[Axis, ...], rows: Mapping[tuple[int, ...], tuple[int, ...]]
) -> tuple[tuple[Scatter, ...], Compute | None]:  # fmt: skip
    """The Scatters that compute `value` from a copy of the table's row, in order, and that copy; none where it is computed in another
    way."""
    makers = {t.name: s for s in body for t in defined(s)}
    out: list[Scatter] = []
    s = makers.get(value.name)
    while isinstance(s, Scatter):
        out.insert(0, s)
        s = makers.get(s.base.name)
    found = copied_row(s) if isinstance(s, Compute) else None
    if not out or found is None or found[0] != table.tensor or not isinstance(s, Compute):
        return (), None
    for at, row in rows.items():
        known = {a.name: i for a, i in zip(axes, at, strict=True)}
        if tuple(value_of_index(e, known) for e in found[1]) != row:
            return (), None
    return tuple(out), s


def _reads_before_writes(program: Program, table: Weight, writes: Mapping[str, Write]) -> bool:
    """Whether no row of the table is read after it has been written."""
    written: set[tuple[int | None, ...]] = set()
    begin = {(w.chain[0].out if w.chain else w.value).name: w.row for w in writes.values()}

    def run(body: Body, at: Mapping[str, int]) -> Iterator[bool]:
        for s in body:
            if isinstance(s, Loop):
                if mentioned(s.body)[table.tensor.name] or any(n in begin for n in _all_defined(s.body)):  # fmt: skip
                    for inner in iterations(s, at):
                        yield from run(s.body, inner)
                continue
            if isinstance(s, (Compute, Scatter)):
                yield from (_free(x.index[: table.table], at) for e in expressions(s) for x in loads(e) if x.tensor == table.tensor)  # fmt: skip
            else:
                yield not mentioned((s,))[table.tensor.name] or not written
            for t in defined(s):
                if t.name in begin:
                    written.add(tuple(value_of_index(e, at) for e in begin[t.name]))

    def _free(index: tuple[Expr, ...], at: Mapping[str, int]) -> bool:
        row = tuple(value_of_index(e, at) for e in index)
        return not written if None in row else row not in written

    return all(run(program.body, {}))


def _all_defined(body: Body) -> Iterator[str]:
    return (t.name for s in statements(body) for t in defined(s))


class _Writer:
    """Rewrites bodies so that they update `table`. writes: by the names of the values. gone: names of removed tensors."""

    def __init__(self, table: Tensor, writes: Mapping[str, Write], names: Names) -> None:
        self.table, self.writes, self._names = table, writes, names
        self._chained = {x.out.name: w for w in writes.values() for x in w.chain}
        self._copies = {w.copy.out.name for w in writes.values() if w.copy is not None}
        self._stacks = {s.name: (w, s) for w in writes.values() for s in w.stacks}
        self._rows: dict[str, Tensor] = {}  # by a value that exists only as a row: the table then
        self.gone = {*self._chained, *self._copies, *self._stacks}

    def body(self, body: Body, now: Tensor) -> tuple[Body, Tensor]:
        """`body` with the table, whose value before it is `now`; and the table after it."""
        out: list[Statement] = []
        for s in body:
            if isinstance(s, Compute) and s.out.name in self._copies:
                continue
            if isinstance(s, Loop):
                s, now = self._loop(s, now)
                out.append(s)
            elif isinstance(s, Scatter) and s.out.name in self._chained:
                tensor = self._fresh(f"{s.out.name}_row")
                index = (*self._chained[s.out.name].row, *s.index)
                new = msgspec.structs.replace(s, out=tensor, base=now, index=index)
                out.append(self._reading(new, now))
                self._rows[s.out.name] = now = tensor
            else:
                out.append(self._reading(s, now))
                for t in defined(s):
                    if t.name in self.writes:
                        stored = self._stored(self.writes[t.name], now, s.origin)
                        out.append(stored)
                        now = stored.out
        return tuple(out), now

    def _stored(self, write: Write, now: Tensor, origin: str) -> Scatter:
        """Stores the computed value of `write` into the table."""
        tensor = self._fresh(f"{write.value.name}_row")
        axes = tuple(Axis(f"i{p}", n) for p, n in enumerate(write.value.shape))
        return Scatter(tensor, now, axes, (*write.row, *axes), Load(write.value, axes), None, origin)  # fmt: skip

    def _loop(self, s: Loop, now: Tensor) -> tuple[Statement, Tensor]:
        stacked = tuple(k for k in s.stacked if k.out.name not in self._stacks)
        if not any(n in self.writes for n in _all_defined(s.body)):
            return self._reading(msgspec.structs.replace(s, stacked=stacked), now), now
        param, last = self._fresh(f"{self.table.name}_before"), self._fresh(f"{self.table.name}_after")  # fmt: skip
        body, result = self.body(s.body, param)
        carried = (*s.carried, Carry(now, param, result, last))
        return msgspec.structs.replace(s, carried=carried, stacked=stacked, body=body), last

    def _fresh(self, name: str) -> Tensor:
        return Tensor(self._names.fresh(name), self.table.shape, self.table.dtype)

    def _reading(self, s: Statement, now: Tensor) -> Statement:
        """`s` and its bodies, reading `now` in place of the table, and its rows in place of stacks of them and of removed tensors."""

        def replaced(x: Load) -> Expr:
            name = x.tensor.name
            if x.tensor == self.table:
                return Load(now, x.index)
            if name in self._rows:
                return Load(self._rows[name], (*self._chained[name].row, *x.index))
            if name not in self._stacks:
                return x
            write, stack = self._stacks[name]
            index = iter(x.index)
            at = [next(index) if i is None else idx(i) for i in stack.at]
            inside = {a.name: e for a, e in zip(write.axes[stack.depth :], at, strict=True)}
            return Load(now, (*(substitute(e, inside) for e in write.row), *index))

        s = map_bodies(s, lambda inner: tuple(self._reading(x, now) for x in inner))
        return map_exprs(s, lambda e: map_loads(e, replaced))
