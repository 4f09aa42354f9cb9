"""The cost of evaluating a scalar expression once, in additions, and its size."""

from collections.abc import Iterable

from monotile.ir.expr import (
    OF_BITS,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    children,
    known,
    loads,
)

# Rough, for both targets: a division or a square root is several instructions, a transcendental function
# a polynomial, integer division by a constant a multiplication and a shift.
_UNARY = {
    "neg": 0.0,
    "tf32": 0.0,
    "is_tf32": 0.0,
    "ascends": 0.0,
    "abs": 0.0,
    "bits": 0.0,
    **dict.fromkeys(OF_BITS, 0.0),
    "not": 0.5,
    "isnan": 1.0,
    "isinf": 1.0,
    "sqrt": 4.0,
    "rsqrt": 4.0,
}
_ROUNDING = frozenset({"floor", "ceil", "trunc", "round"})
_BINARY = {
    "div": 4.0,
    "pow": 32.0,
    "atan2": 32.0,
    "hypot": 8.0,
    "fmod": 16.0,
    "ipow": 16.0,
    "philox": 64.0,
}
TRANSCENDENTAL = 16.0
INDEX = 0.25  # integer arithmetic on axes alone is mostly shared between neighbours


def cost(e: Expr) -> float:
    """Operations of one evaluation of `e`; a repeated subexpression counts once."""
    return sum(map(_own, _nodes(e)))


def dearest(e: Expr) -> float:
    """The cost of the most expensive operation in `e`."""
    return max(map(_own, _nodes(e)))


def _nodes(e: Expr) -> Iterable[Expr]:
    """Each once, in a deterministic order."""
    seen: dict[Expr, None] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            stack.extend(children(node))
    return seen


def _own(e: Expr) -> float:
    match e:
        case Const() | Axis():
            return 0.0
        case Load():
            return 1.0
        case Cast(x):
            return 0.5 if x.dtype.is_float or e.dtype.is_float else INDEX
        case Select():
            return 1.0
        case Unary(op, x):
            if op in _UNARY:
                return _UNARY[op]
            return 1.0 if op in _ROUNDING else TRANSCENDENTAL
        case Binary(op, a, _):
            if a.dtype.is_float:
                return _BINARY.get(op, 1.0)
            return _BINARY.get(op, INDEX if not loads(e) else 1.0)


def size(e: Expr, limit: int) -> int:
    """Nodes of `e` as a tree, counted up to a little over `limit`."""
    count = 0
    stack = [e]
    while stack and count <= limit:
        node = stack.pop()
        count += 1
        stack.extend(children(node))
    return count


def index_only(e: Expr) -> bool:
    """Whether `e` depends on axes and literals alone."""
    return not loads(e)


def guarded_load(e: Expr) -> Load | None:
    """The only Load of a view or a padding: a Load indexed by axes, under selects, by axes and sizes, between it and literals."""
    match e:
        case Load():
            return None if any(loads(i) for i in e.index) else e
        case Cast(x):
            return guarded_load(x)
        case Select(cond, then, otherwise) if known(cond):
            sides = [side for side in (then, otherwise) if not isinstance(side, Const)]
            return guarded_load(sides[0]) if len(sides) == 1 else None
        case _:
            return None
