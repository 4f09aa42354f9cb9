"""What a load reads of a dimension, whatever its index runs over: its index is held back, or it is read where a test holds."""

from collections.abc import Iterator

from monotile.ir.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Select,
    SizeTensor,
    children,
    conjuncts,
    loads,
    walk,
)
from monotile.ir.program import Part


def held_before(index: Expr) -> Part | None:
    """What an index reads that is held before a scalar: `min(x, end[] - 1)`, where the scalar is not zero."""
    match index:
        case Binary("min", _, Binary("sub", Load(end, ()), Const(1))):
            return Part((None, end))
        case _:
            return None


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
