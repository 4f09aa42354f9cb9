"""What is evaluated under conditions, and under which: a Select and those within it are a tree, as of a concatenation."""

from collections.abc import Iterator

from monotile.ir.expr import Binary, Const, Expr, Load, Select, children, loads

Holds = tuple[Expr, bool]  # a condition, and whether it holds


def guarded(
    cond: Expr, sides: tuple[Expr, Expr], outside: tuple[Holds, ...] = ()
) -> Iterator[tuple[Expr, tuple[Holds, ...]]]:
    """The parts of both sides, but for the indices of what they load, each with what holds where it is evaluated."""
    for side, holds in zip(sides, (True, False), strict=True):
        when = (*outside, (cond, holds))
        for node in _parts(side):
            yield node, when
            if isinstance(node, Select):
                yield from guarded(node.cond, (node.then, node.otherwise), when)


def is_choice(e: Expr) -> bool:
    """Whether `e` is one of several loads, or nothing: zero."""
    match e:
        case Select(_, then, otherwise):
            return is_choice(then) and is_choice(otherwise)
        case Const(value):
            return value == 0 and str(value)[0] != "-"
        case _:
            return isinstance(e, Load)


def ends(e: Expr) -> Iterator[Expr]:
    """What a tree of conditions is one of."""
    if isinstance(e, Select):
        yield from ends(e.then)
        yield from ends(e.otherwise)
    else:
        yield e


def choices(e: Expr) -> Iterator[Select]:
    """The largest choices between several loads that are evaluated whenever `e` is, but for those inside indices."""
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
