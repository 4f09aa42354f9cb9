"""The structure of a statement, without the data that it works on.

One traversal visits every place where a copy of a statement may differ: the tensors that it reads (slots), the tensors that it defines,
and the integer literals of index arithmetic. `record` lists them and returns the rest as a hashable key; `rewrite` replaces them. Sums
are visited in the normal form of `analysis.linear`, so that `i0` and `i0 + 4` differ in a literal, not in structure.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from monotile.analysis.linear import linear, total
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
    idx,
)
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Compute,
    Live,
    Loop,
    Scatter,
    Stack,
    Statement,
)


class Visitor(Protocol):
    """The callbacks of `visit`, called in an order that depends only on the structure."""

    def token(self, *parts: Hashable) -> None:
        """A part of the structure."""
        ...

    def constant(self, value: int) -> Expr:
        """The constant of an int64 sum (0 if there is none)."""
        ...

    def load(self, tensor: Tensor, index: tuple[Expr, ...]) -> Expr:
        """A Load, its index already visited."""
        ...

    def use(self, tensor: Tensor) -> Tensor:
        """A whole use of a tensor (an init, a base, a result)."""
        ...

    def define(self, tensor: Tensor) -> Tensor: ...


Scope = dict[str, Hashable]  # axis name -> its position


def visit(s: Statement, v: Visitor, scope: Scope | None = None) -> Statement:
    """`s` rebuilt from the results of `v`; the same object if nothing changed."""
    scope = {} if scope is None else scope
    match s:
        case Compute():
            inner = scope_of(s.axes, s.reduce, scope)
            v.token("compute", s.combiner, s.out.dtype, _extents(s.axes), _extents(s.reduce))
            body = visit_expr(s.body, v, inner)
            live = tuple(_visit_live(x, v, inner) for x in s.live)
            out = v.define(s.out)
            if body is s.body and out is s.out and live == s.live:
                return s
            return Compute(out, s.axes, s.reduce, s.combiner, body, s.origin, live)
        case Scatter():
            inner = scope_of(s.axes, (), scope)
            v.token("scatter", s.combiner, s.distinct, s.out.shape, s.out.dtype, _extents(s.axes))
            base = v.use(s.base)
            index = tuple(visit_expr(e, v, inner) for e in s.index)
            value = visit_expr(s.value, v, inner)
            out = v.define(s.out)
            new = Scatter(out, base, s.axes, index, value, s.combiner, s.origin, s.distinct)
            return s if new == s else new
        case Loop():
            return _visit_loop(s, v, scope)
        case Branch():
            v.token("branch", len(s.then), len(s.otherwise), len(s.outs))
            predicate = v.use(s.predicate)
            then = _visit_body(s.then, v, scope)
            otherwise = _visit_body(s.otherwise, v, scope)
            outs = tuple(
                BranchOut(v.use(o.then), v.use(o.otherwise), v.define(o.out)) for o in s.outs
            )
            new = Branch(predicate, then, otherwise, outs, s.origin)
            return s if new == s else new


def _visit_live(x: Live, v: Visitor, scope: Scope) -> Live:
    at = tuple((scope[a.axis.name], a.run) for a in x.at)
    v.token("live", scope[x.axis.name], *(t is not None for t in (*x.ends, x.within)), at)
    first, last, within = (None if t is None else v.use(t) for t in (*x.ends, x.within))
    return Live(x.axis, first, last, x.at, within)


def _visit_loop(s: Loop, v: Visitor, scope: Scope) -> Loop:
    flags = (s.count is not None, s.predicate is not None)
    v.token("loop", s.axis.extent, len(s.carried), len(s.stacked), len(s.body), *flags)
    for c in s.carried:
        v.token(c.init.shape, c.init.dtype)
    count = None if s.count is None else v.use(s.count)
    inits = [v.use(c.init) for c in s.carried]
    params = [v.define(c.param) for c in s.carried]
    body = _visit_body(s.body, v, loop_scope(s, scope))
    results = [v.use(c.result) for c in s.carried]
    predicate = None if s.predicate is None else v.use(s.predicate)
    values = [v.use(k.value) for k in s.stacked]
    outs = [v.define(c.out) for c in s.carried]
    stacks = [v.define(k.out) for k in s.stacked]
    carried = tuple(Carry(*c) for c in zip(inits, params, results, outs, strict=True))
    stacked = tuple(Stack(*k) for k in zip(values, stacks, strict=True))
    new = Loop(s.axis, carried, stacked, body, count, predicate, s.origin)
    return s if new == s else new


def loop_scope(s: Loop, scope: Scope) -> Scope:
    """`scope` with the axis of the loop `s`."""
    return scope | {s.axis.name: ("loop", len(scope))}


def _visit_body(body: tuple[Statement, ...], v: Visitor, scope: Scope) -> tuple[Statement, ...]:
    return tuple(visit(s, v, scope) for s in body)


def scope_of(axes: tuple[Axis, ...], reduce: tuple[Axis, ...], scope: Scope) -> Scope:
    """`scope` with the axes of a Compute by position."""
    inner: Scope = dict(scope)
    for k, axis in enumerate((*axes, *reduce)):
        inner[axis.name] = k
    return inner


def _extents(axes: tuple[Axis, ...]) -> tuple[int, ...]:
    return tuple(a.extent for a in axes)


def visit_expr(e: Expr, v: Visitor, scope: Scope) -> Expr:
    """`e` rebuilt from the results of `v`; the same object if nothing changed."""
    match e:
        case Const(value, dtype) if dtype is not DType.I64:
            v.token("const", repr(value), dtype)
            return e
        case Const() | Axis() | Binary() | Unary() if e.dtype is DType.I64:
            return _visit_sum(e, v, scope)
        case _:
            return _visit_node(e, v, scope)


def _visit_sum(e: Expr, v: Visitor, scope: Scope) -> Expr:
    terms, constant = linear(e)
    v.token("sum", *(factor for factor, _ in terms))
    new = tuple((factor, _visit_node(atom, v, scope)) for factor, atom in terms)
    rest = v.constant(constant)
    same = isinstance(rest, Const) and rest.value == constant
    if same and all(a is b for (_, a), (_, b) in zip(terms, new, strict=True)):
        return e
    return total(new, rest)


def _visit_node(e: Expr, v: Visitor, scope: Scope) -> Expr:
    match e:
        case Const():
            return visit_expr(e, v, scope)
        case Axis(name, extent):
            v.token("axis", scope.get(name, name), extent)
            return e
        case Load(tensor, index):
            v.token("load", tensor.shape, tensor.dtype)
            new = tuple(visit_expr(i, v, scope) for i in index)
            made = v.load(tensor, new)
            return e if made == e else made
        case Unary(op, x):
            v.token(op)
            y = visit_expr(x, v, scope)
            return e if y is x else Unary(op, y)
        case Cast(x, dtype):
            v.token("cast", dtype)
            y = visit_expr(x, v, scope)
            return e if y is x else Cast(y, dtype)
        case Binary(op, a, b):
            v.token(op)
            na, nb = visit_expr(a, v, scope), visit_expr(b, v, scope)
            return e if na is a and nb is b else Binary(op, na, nb)
        case Select(c, t, o):
            v.token("select")
            nc, nt, no = (visit_expr(x, v, scope) for x in (c, t, o))
            return e if nc is c and nt is t and no is o else Select(nc, nt, no)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """key: equal for statements (expressions) of equal structure. The others: what may differ, in order.

    uses: tensors read, including those of loop bodies. loads: which of the uses are Loads.
    """

    key: Hashable
    uses: tuple[Tensor, ...]
    loads: tuple[bool, ...]
    definitions: tuple[Tensor, ...]
    constants: tuple[int, ...]


class _Recorder:
    def __init__(self) -> None:
        self.tokens: list[Hashable] = []
        self.uses: list[Tensor] = []
        self.loads: list[bool] = []
        self.definitions: list[Tensor] = []
        self.constants: list[int] = []

    def token(self, *parts: Hashable) -> None:
        self.tokens += parts

    def constant(self, value: int) -> Expr:
        self.constants.append(value)
        return idx(value)

    def load(self, tensor: Tensor, index: tuple[Expr, ...]) -> Expr:
        self.uses.append(tensor)
        self.loads.append(True)
        return Load(tensor, index)

    def use(self, tensor: Tensor) -> Tensor:
        self.uses.append(tensor)
        self.loads.append(False)
        return tensor

    def define(self, tensor: Tensor) -> Tensor:
        self.definitions.append(tensor)
        return tensor

    def result(self) -> Skeleton:
        return Skeleton(
            tuple(self.tokens),
            tuple(self.uses),
            tuple(self.loads),
            tuple(self.definitions),
            tuple(self.constants),
        )


def skeleton(s: Statement) -> Skeleton:
    """The Skeleton of a statement."""
    recorder = _Recorder()
    visit(s, recorder)
    return recorder.result()


def skeleton_of_expr(e: Expr, scope: Scope | None = None) -> Skeleton:
    """The Skeleton of an expression; axes that are not in `scope` are compared by name."""
    recorder = _Recorder()
    visit_expr(e, recorder, scope or {})
    return recorder.result()
