"""What an expression always evaluates."""

from collections.abc import Iterator

from monotile.ir.expr import Binary, Expr, Load, Select, children


def unconditional(e: Expr) -> Iterator[Load]:
    """The Loads that are evaluated whenever `e` is, but for those inside the indices of others."""
    match e:
        case Load():
            yield e
        case Select(cond):
            yield from unconditional(cond)
        case Binary("and" | "or", a):
            yield from unconditional(a)
        case _:
            for child in children(e):
                yield from unconditional(child)
