"""States of rolled layers, updated where they lie.

Rolling gathers the layers' states in a table of pointers, of which an iteration copies its row, updates the copy and stacks the result; after
the loop each row of the stack is some state's new value. That moves every cache in and out of the loop, and takes statements for each layer.
Instead the loop carries the table itself, of which each iteration updates its own row: Scatter by Scatter, or all of it. The table is
one state then, under the name of its tensor.
"""

from collections.abc import Mapping

import msgspec

from monotile.analysis.rows import copied_row
from monotile.analysis.uses import mentions
from monotile.ir.expr import Axis, Const, Expr, Load, Tensor, map_loads
from monotile.ir.program import (
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Stack,
    Statement,
    Weight,
    statements,
    updates,
)
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_exprs


def update_tables(program: Program) -> Program:
    """`program` with loops that carry tables of states where all rows of one are what a loop stacks."""
    loops = (s for s in program.body if isinstance(s, Loop) and not s.ends_early)
    for loop, stack in ((s, k) for s in loops for k in s.stacked):
        made = _carried(program, loop, stack)
        if made is not None:
            return update_tables(made)
    return program


def _carried(program: Program, loop: Loop, stack: Stack) -> Program | None:
    """`program` with `loop` carrying the table instead of stacking its rows; None if the stack is no table's new rows."""
    counts = mentions(program)
    rows = _rows(program, stack.out)
    states = {u.result.name: u.name for u in updates(program)}
    if sorted(rows.values()) != [*range(loop.axis.extent)] or counts[stack.out.name] != len(rows):
        return None
    if any(n not in states or counts[n] != 1 for n in rows):
        return None
    parts = tuple(states[n] for n in sorted(rows, key=rows.__getitem__))
    names = Names(program)
    weights, table = _table(program, parts, names)
    if table is None:
        return None
    scatters, copy = _chain(loop, stack.value, table)
    reads = counts[table.tensor.name]
    if reads != (1 if copy else 0) or (copy and counts[copy.out.name] != 1):
        return None
    inner = [s.out.name for s in scatters[:-1]]
    loaded = sum(x == stack.value for x in _loaded(loop.body))
    if any(counts[n] != 1 for n in inner) or counts[stack.value.name] != loaded + 1:
        return None
    body, carry = _body(loop, stack.value, table.tensor, scatters if copy else [], copy, names)
    new = msgspec.structs.replace(
        loop,
        carried=(*loop.carried, carry),
        stacked=tuple(k for k in loop.stacked if k is not stack),
        body=body,
    )
    return _with(program, loop, new, set(rows), weights, table.tensor)


def _with(
    program: Program,
    old: Loop,
    new: Loop,
    rows: set[str],
    weights: tuple[Weight, ...],
    table: Tensor,
) -> Program:
    """`program` with the loop in place of the old one, without the statements `rows`, and with the table as a state."""
    body = tuple(
        new if s is old else s
        for s in program.body
        if not (isinstance(s, Compute) and s.out.name in rows)
    )
    kept = [u for u in updates(program) if u.result.name not in rows]
    return msgspec.structs.replace(
        program,
        weights=weights,
        body=body,
        outputs=(*program.results, *(u.result for u in kept), new.carried[-1].out),
        states=(*(u.name for u in kept), table.name),
    )


def _rows(program: Program, whole: Tensor) -> dict[str, int]:
    """The Computes that copy a row of `whole`, by name, and which."""
    computes = [s for s in program.body if isinstance(s, Compute)]
    found = {s.out.name: _row(s, whole) for s in computes}
    return {name: int(i.value) for name, i in found.items() if isinstance(i, Const)}


def _row(s: Compute, whole: Tensor) -> Expr | None:
    """The first index, where `s` is a copy of a row of `whole`."""
    found = copied_row(s)
    return found[1][0] if found is not None and found[0] == whole and len(found[1]) == 1 else None


def _table(
    program: Program, parts: tuple[str, ...], names: Names
) -> tuple[tuple[Weight, ...], Weight | None]:
    """The weights, with one whose parts are `parts`: one that there is, or one made of single weights that nobody reads."""
    for w in program.weights:
        if w.parts == parts and w.table == 1:
            return program.weights, w
    single = {w.parts[0]: w for w in program.weights if len(w.parts) == 1 and not w.table}
    found = [single.get(p) for p in parts]
    counts = mentions(program)
    first = found[0]
    if first is None or any(
        w is None or w.tensor.shape != first.tensor.shape or w.tensor.dtype is not first.tensor.dtype or counts[w.tensor.name]
        for w in found
    ):  # fmt: skip
        return program.weights, None
    shape = (len(parts), *first.tensor.shape)
    tensor = Tensor(names.fresh(f"{first.tensor.name}_all"), shape, first.tensor.dtype)
    made = Weight(tensor, parts, 1)
    rest = tuple(w for w in program.weights if w.parts[0] not in parts or len(w.parts) > 1)
    return (*rest, made), made


def _chain(loop: Loop, value: Tensor, table: Weight) -> tuple[list[Scatter], Compute | None]:
    """The Scatters that make `value` of a copy of the table's row, in order, and that copy; none where it is made in another way."""
    made = {s.out.name: s for s in loop.body if isinstance(s, (Compute, Scatter))}
    out: list[Scatter] = []
    s = made.get(value.name)
    while isinstance(s, Scatter):
        out.insert(0, s)
        s = made.get(s.base.name)
    if out and isinstance(s, Compute) and _row(s, table.tensor) == loop.axis:
        return out, s
    return [], None


def _loaded(body: Body) -> list[Tensor]:
    found: list[Tensor] = []

    def note(x: Load) -> Expr:
        found.append(x.tensor)
        return x

    for s in statements(body):
        map_exprs(s, lambda e: map_loads(e, note))
    return found


def _body(
    loop: Loop,
    value: Tensor,
    table: Tensor,
    scatters: list[Scatter],
    copy: Compute | None,
    names: Names,
) -> tuple[Body, Carry]:
    """The loop's body with the table updated, and its carry. scatters: those that update `copy`, which goes; without any, `value` is stored."""
    param, out = (Tensor(names.fresh(f"{table.name}_{w}"), table.shape, table.dtype) for w in ("before", "after"))  # fmt: skip
    now: dict[str, Tensor] = {}
    base, made = param, list[Statement]()
    for s in loop.body:
        if s is copy:
            continue
        if isinstance(s, Scatter) and any(s is x for x in scatters):
            tensor = Tensor(names.fresh(f"{s.out.name}_row"), table.shape, table.dtype)
            s = msgspec.structs.replace(s, out=tensor, base=base, index=(loop.axis, *s.index))
            now[scatters[len(now)].out.name] = base = tensor
        made.append(_reading(s, now, loop.axis))
        if not scatters and isinstance(s, (Compute, Scatter)) and s.out == value:
            tensor = Tensor(names.fresh(f"{value.name}_row"), table.shape, table.dtype)
            axes = tuple(Axis(f"i{p}", n) for p, n in enumerate(value.shape))
            made.append(Scatter(tensor, base, axes, (loop.axis, *axes), Load(value, axes), None, s.origin))  # fmt: skip
            base = tensor
    return tuple(made), Carry(table, param, base, out)


def _reading(s: Statement, now: Mapping[str, Tensor], row: Expr) -> Statement:
    """`s`, and what is in it, reading rows of the tables `now` in place of what these have instead."""

    def replaced(x: Load) -> Expr:
        to = now.get(x.tensor.name)
        return x if to is None else Load(to, (row, *x.index))

    s = map_bodies(s, lambda inner: tuple(_reading(x, now, row) for x in inner))
    return map_exprs(s, lambda e: map_loads(e, replaced))
