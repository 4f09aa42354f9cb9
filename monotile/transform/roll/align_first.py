"""Peels differences off the first repetition, so that it can be rolled with the others.

Later repetitions read values of the previous one. The first reads other tensors, often through another expression: a transposed input, a
slice, zeros. Materialised, each of these is a tensor like those that are carried, and the first repetition has the same structure as the
others.
"""

from collections.abc import Sequence

from monotile.analysis.align import Alignment, Around, Carried, align
from monotile.analysis.skeleton import (
    Scope,
    Skeleton,
    loop_scope,
    scope_of,
    skeleton,
    skeleton_of_expr,
)
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    axes_of,
    const,
    loads,
    substitute,
)
from monotile.ir.program import Compute, Loop, Statement, statements
from monotile.ir.program import defined as defined_by
from monotile.transform.names import Names

_COMMUTATIVE = frozenset({"add", "mul"})


def align_first(
    first: Sequence[Statement],
    second: Sequence[Statement],
    parts: Sequence[Sequence[Skeleton]],
    a: Alignment,
    weights: frozenset[str],
    around: Around | None,
    names: Names,
) -> tuple[Statement, ...] | None:
    """`first`, the group before the aligned groups, rewritten to align with them; None if that is impossible.

    second: the first of these groups. parts: the skeletons of all of them.
    Returns the materialised tensors, then the statements of `first` that read them.
    """
    carried = frozenset(c.init.name for c in a.slots if isinstance(c, Carried))
    own = frozenset(t.name for s in statements(tuple(first)) for t in _all_defined(s))
    fit = _Fit(carried, own, names)
    new: list[Statement] = []
    for s, like in zip(first, second, strict=True):
        made = fit.statement(s, like, {}, {})
        if made is None:
            return None
        new.append(made)
    if not fit.copies:
        return None
    own_parts = [skeleton(s) for s in new]
    if any(x.key != y.key for x, y in zip(own_parts, parts[0], strict=True)):
        return None
    found = align([own_parts, *parts], weights, around)
    if not found or found[0].first != 0 or found[0].count != len(parts) + 1:
        return None
    return (*fit.copies.values(), *new)


def _all_defined(s: Statement) -> tuple[Tensor, ...]:
    if isinstance(s, Loop):
        return (*defined_by(s), *(c.param for c in s.carried))
    return defined_by(s)


class _Fit:
    """Rewrites a statement to have the structure of another.

    carried: names of tensors that the other reads from the previous repetition. own: names of tensors that the first
    repetition defines. copies: materialised tensors by their value.
    """

    def __init__(self, carried: frozenset[str], own: frozenset[str], names: Names) -> None:
        self.carried = carried
        self.own = own
        self.names = names
        self.copies: dict[tuple[Expr, tuple[int, ...]], Compute] = {}

    def statement(self, s: Statement, like: Statement, mine: Scope, its: Scope) -> Statement | None:
        """`s` rewritten, or None. mine, its: the scopes of the two statements."""
        match s, like:
            case Compute(), Compute():
                if len(s.axes) != len(like.axes) or len(s.reduce) != len(like.reduce):
                    return None
                body = self.expr(
                    s.body,
                    like.body,
                    scope_of(s.axes, s.reduce, mine),
                    scope_of(like.axes, like.reduce, its),
                )
                if body is None or body is s.body:
                    return s if body is s.body else None
                return Compute(s.out, s.axes, s.reduce, s.combiner, body, s.origin)
            case Loop(), Loop():
                if len(s.body) != len(like.body):
                    return None
                body_scopes = loop_scope(s, mine), loop_scope(like, its)
                inner = [
                    self.statement(x, y, *body_scopes)
                    for x, y in zip(s.body, like.body, strict=True)
                ]
                done = tuple(x for x in inner if x is not None)
                if len(done) < len(inner):
                    return None
                return Loop(s.axis, s.carried, s.stacked, done, s.count, s.predicate, s.origin)
            case _:
                return s if type(s) is type(like) else None

    def expr(self, e: Expr, like: Expr, mine: Scope, its: Scope) -> Expr | None:
        """`e` rewritten, or None."""
        if e.dtype is DType.I64 and like.dtype is DType.I64 and not isinstance(like, Load):
            same = skeleton_of_expr(e, mine).key == skeleton_of_expr(like, its).key
            return e if same else None
        match e, like:
            case _, Load(tensor) if tensor.name in self.carried:
                if isinstance(e, Load) and _type(e.tensor) == _type(tensor):
                    return e
                return self._materialised(e, like, mine, its)
            case Const(value), Cast(Load(tensor) as x) if tensor.name in self.carried:
                if value != 0:
                    return None
                inner = self._materialised(const(0, x.dtype), x, mine, its)
                return None if inner is None else Cast(inner, like.dtype)
            case Load(), Load():
                return e
            case Const(), Const():
                return e
            case (Unary(op, x), Unary(other, y)) if op == other:
                new = self.expr(x, y, mine, its)
                return None if new is None else Unary(op, new)
            case Cast(x, dtype), Cast(y):
                new = self.expr(x, y, mine, its)
                return None if new is None else Cast(new, dtype)
            case (Binary(op, p, q), Binary(other, r, s)) if op == other:
                # Simplification moves literals to the right, where the other may have a tensor on the left.
                orders = ((p, q), (q, p)) if op in _COMMUTATIVE else ((p, q),)
                for x, y in orders:
                    left, right = self.expr(x, r, mine, its), self.expr(y, s, mine, its)
                    if left is not None and right is not None:
                        return Binary(op, left, right)
                return None
            case Select(c, t, o), Select(d, u, p):
                cond = self.expr(c, d, mine, its)
                then, otherwise = self.expr(t, u, mine, its), self.expr(o, p, mine, its)
                if cond is None or then is None or otherwise is None:
                    return None
                return Select(cond, then, otherwise)
            case _:
                return None

    def _materialised(self, e: Expr, like: Load, mine: Scope, its: Scope) -> Expr | None:
        """A Load of a new tensor, of the type of like.tensor, that contains `e` at the index of `like`."""
        t = like.tensor
        if e.dtype is not t.dtype or any(x.tensor.name in self.own for x in loads(e)):
            return None
        by_place = {place: name for name, place in mine.items()}
        index: list[Axis] = []
        for i, extent in zip(like.index, t.shape, strict=True):
            name = by_place.get(its.get(i.name)) if isinstance(i, Axis) else None
            if name is None or not isinstance(i, Axis) or i.extent != extent:
                return None
            index.append(Axis(name, extent))
        if len(set(index)) < len(index):
            return None
        if any(a.name in mine and a not in index for a in axes_of(e)):
            return None
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(t.shape))
        places: dict[str, Expr] = {a.name: i for a, i in zip(index, axes, strict=True)}
        body = substitute(e, places)
        copy = self.copies.get((body, t.shape))
        if copy is None:
            out = Tensor(self.names.fresh(f"{t.name}_first"), t.shape, t.dtype)
            copy = Compute(out, axes, (), None, body)
            self.copies[body, t.shape] = copy
        return Load(copy.out, tuple(index))


def _type(t: Tensor) -> tuple[tuple[int, ...], DType]:
    return t.shape, t.dtype
