"""What a load reads of a dimension, whatever its index runs over: its index is held back, or it is read where a test holds."""

import functools
from collections.abc import Iterator, Mapping

from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Select,
    SizeTensor,
    axes_of,
    children,
    conjuncts,
    idx,
    loads,
    rebuild,
    walk,
)
from monotile.ir.program import Compute, Live, Part, Scatter


def held_before(index: Expr) -> Part | None:
    """What an index reads that is held before a scalar: `min(x, end[] - 1)`, where the scalar is not zero."""
    match index:
        case Binary("min", _, Binary("sub", Load(end, ()), Const(1))):
            return Part((None, end))
        case _:
            return None


@functools.lru_cache(4096)
def released(s: Scatter) -> tuple[tuple[Expr, ...], tuple[Live, ...]]:
    """The indices of a Scatter without what holds its axes, and the held axes as live up to there. An axis is held if the Scatter depends on
    `min(axis, end[] - 1)` alone: its other points write once more what the last one writes. None is in an update of what was there before.
    """
    every = (*s.index, s.value)
    if s.combiner is not None or {s.base, s.out} & {x.tensor for e in every for x in loads(e)}:
        return s.index, ()
    free: dict[Expr, Expr] = {}
    live: list[Live] = []
    for hold in dict.fromkeys(x for e in every for x in walk(e)):
        part = held_before(hold)
        if part is None or not isinstance(hold, Binary) or not isinstance(hold.a, Axis):
            continue
        if not any(hold.a in axes_of(_replaced(e, {hold: idx(0)})) for e in every):
            free[hold] = hold.a
            live.append(Live(hold.a, *part.ends))
    return tuple(_replaced(e, free) for e in s.index), tuple(live)


def _replaced(e: Expr, ways: Mapping[Expr, Expr]) -> Expr:
    return ways[e] if e in ways else rebuild(e, lambda x: _replaced(x, ways))


def live_of(s: Compute | Scatter) -> tuple[Live, ...]:
    """What is live along a statement's axes."""
    return s.live if isinstance(s, Compute) else released(s)[1]


def tested(body: Expr, x: Load, at: int) -> Part | None:
    """What `body` reads through `x` along dimension `at`, where it does so only where the index is less than a size of the call that is within
    the dimension."""
    if any(x in loads(e.cond) for e in walk(body) if isinstance(e, Select)):
        return None
    ways = {_size(holds, x, at) for holds in _read(body, x, ())}
    end = ways.pop() if len(ways) == 1 else None
    return None if end is None else Part((None, end))


def _read(e: Expr, x: Load, holds: tuple[Expr, ...]) -> Iterator[tuple[Expr, ...]]:
    """For each place where `x` is read, the tests that hold there."""
    if e == x:
        yield holds
    elif isinstance(e, Select):
        yield from _read(e.then, x, (*holds, *conjuncts(e.cond)))
        yield from _read(e.otherwise, x, holds)
    else:
        for part in children(e):
            yield from _read(part, x, holds)


def _size(tests: tuple[Expr, ...], x: Load, at: int) -> SizeTensor | None:
    for test in reversed(tests):
        match test:
            case Binary("lt", i, Load(SizeTensor() as t, ())) if i == x.index[at]:
                if t.most <= x.tensor.shape[at]:
                    return t
            case _:
                pass
    return None
