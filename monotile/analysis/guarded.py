"""Subexpressions with the conditions under which they are evaluated: nested Selects form a tree, as in a concatenation."""

from collections.abc import Iterator

from monotile.ir.expr import Binary, Const, Expr, Load, Select, children, loads

Holds = tuple[Expr, bool]  # a condition, and whether it holds


def guarded(
    cond: Expr, sides: tuple[Expr, Expr], outside: tuple[Holds, ...] = ()
) -> Iterator[tuple[Expr, tuple[Holds, ...]]]:
    """The parts of both sides, without indices of their loads, each with the conditions under which it is evaluated."""
    for side, holds in zip(sides, (True, False), strict=True):
        when = (*outside, (cond, holds))
        for node in _parts(side):
            yield node, when
            if isinstance(node, Select):
                yield from guarded(node.cond, (node.then, node.otherwise), when)


def is_choice(e: Expr) -> bool:
    """Whether `e` is one of several loads, or zero."""
    match e:
        case Select(_, then, otherwise):
            return is_choice(then) and is_choice(otherwise)
        case Const(value):
            return value == 0 and str(value)[0] != "-"
        case _:
            return isinstance(e, Load)


def ends(e: Expr) -> Iterator[Expr]:
    """The leaves of a tree of conditions."""
    if isinstance(e, Select):
        yield from ends(e.then)
        yield from ends(e.otherwise)
    else:
        yield e


def choices(e: Expr) -> Iterator[Select]:
    """The largest selections between several loads that are evaluated whenever `e` is, apart from those inside indices."""
    match e:
        case Load():
            return
        case Select(cond, _, _):
            if is_choice(e) and len(set(loads(e))) > 1 and not loads(cond):
                yield e
            else:
                yield from choices(cond)
        case Binary("and" | "or", a, _):
            yield from choices(a)
        case _:
            for x in children(e):
                yield from choices(x)


def _parts(e: Expr) -> Iterator[Expr]:
    yield e
    for x in () if isinstance(e, Load | Select) else children(e):
        yield from _parts(x)
