"""The verifier of Programs: names, types, shapes, and indices as far as they can be proven out of range."""

from collections.abc import Mapping, Sequence, Set
from math import prod

import msgspec

from monotile.errors import VerificationError
from monotile.ir import printer
from monotile.ir.bounds import find_violation
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    COMBINERS,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    SizeTensor,
    Tensor,
    Unary,
    children,
    loads,
)
from monotile.ir.held import held_before, tested
from monotile.ir.intervals import type_range
from monotile.ir.program import (
    Branch,
    Compute,
    Live,
    Loop,
    Part,
    Program,
    Scatter,
    Statement,
    is_snapshot,
    parts_of,
    statements,
    updates,
    used,
    wholes,
)
from monotile.ir.scope import Scope, joined, show_type
from monotile.ir.takes import takes_binary, takes_unary


def verify(program: Program) -> None:
    """Checks `program`; raises VerificationError with the statement and what is wrong with it."""
    names: set[str] = set()
    visible: dict[str, Tensor] = {}
    here = Scope("", names, visible, {}, {})
    for t in program.inputs:
        Scope(f"input {t.name!r}", names, visible, {}, {}).define(t)
    for w in program.weights:
        at = Scope(f"weight {w.tensor.name!r}", names, visible, {}, {})
        at.define(w.tensor)
        at.check(w.table <= len(w.tensor.shape), "its table has more dimensions than it")
        want = prod(w.tensor.shape[: w.table])
        at.check(len(w.parts) == want, f"it has {len(w.parts)} parts, its table {want}")
    _body(here, program.body)
    sizes = _sizes(program, here)
    for k, t in enumerate(program.outputs):
        along = program.defined_along(k)
        at = msgspec.structs.replace(here, where=f"output {t.name!r}")
        at.check(len(along) == len(t.shape), f"{len(along)} sizes of {len(t.shape)} dimensions")
        at.part(t, tuple(Part((None, sizes[n])) if n else None for n in along))
    _states(program, here)
    _watched(program, here)


def _sizes(program: Program, at: "Scope") -> dict[str, Tensor]:
    given = {t.name: t for t in program.inputs}
    for t in program.inputs:
        if isinstance(t, SizeTensor):
            fits = t.shape == () and t.dtype in (DType.I64, DType.F64)
            at.check(fits and 0 <= t.least <= t.most, f"{t} is no size")
    named = {n for x in program.partial for n in x if n}
    fits = len(program.partial) in (0, len(program.outputs))
    at.check(fits, f"{len(program.outputs)} outputs, sizes of {len(program.partial)}")
    at.check(program.by_value >= named, f"{_some(named - program.by_value)} is no size")
    return given


def _watched(program: Program, at: "Scope") -> None:
    given = {t.name: t for t in program.inputs}
    for name in program.watched:
        t = given.get(name)
        at.check(t is not None, f"watched {name!r} is no input")
        at.check(program.watched.count(name) == 1, f"{name!r} is watched twice")
        small = t is not None and t.dtype.is_float and t.dtype.itemsize < 4
        at.check(not small, f"watched {name!r} has elements of {t and t.dtype}")
        scalar = t is not None and not t.shape
        at.check(name in program.states or scalar, f"watched {name!r} is neither scalar nor state")
    changing = program.changing
    for s in statements(program.body):
        if isinstance(s, (Compute, Scatter)):
            loaded = used(s)[len(wholes(s)) :]
            wrong = {t.name for t in loaded}.intersection(program.watched)
            at.check(
                not wrong or is_snapshot(s, changing),
                f"watched {_some(wrong)} is read by {s.out.name!r}, which is no snapshot of it",
            )
    whole = {t.name for s in statements(program.body) for t in wholes(s)}
    wrong = changing & (whole | {t.name for t in program.outputs})
    at.check(not wrong, f"watched {_some(wrong)} is used without a snapshot of it")


def _some(names: Set[str]) -> str:
    return repr(min(names, default=""))


def _states(program: Program, at: "Scope") -> None:
    enough = len(program.states) <= len(program.outputs)
    at.check(enough, f"{len(program.states)} states and {len(program.outputs)} outputs")
    at.check(len(set(program.states)) == len(program.states), "a state is named twice")
    tables = {w.tensor.name: w.table for w in program.weights}
    for u in updates(program):
        at.check(bool(u.old), f"state {u.name!r} is no input and no part of a weight")
        for t in u.old:
            shape = t.shape[tables.get(t.name, 0) if u.name != t.name else 0 :]
            fits = (shape, t.dtype) == (u.result.shape, u.result.dtype)
            at.check(
                fits, f"state {u.name!r} is {show_type(t)}, its new value {show_type(u.result)}"
            )


def _body(scope: Scope, body: Sequence[Statement]) -> None:
    for k, s in enumerate(body):
        at = msgspec.structs.replace(scope, where=_where(scope.where, k, s))
        match s:
            case Compute():
                _compute(at, s)
            case Scatter():
                _scatter(at, s)
            case Loop():
                _loop(at, s)
            case Branch():
                _branch(at, s)


def _where(outer: str, k: int, s: Statement) -> str:
    match s:
        case Compute() | Scatter():
            what = f"{type(s).__name__} of {s.out.name!r}"
        case Loop():
            what = f"Loop over {s.axis.name!r}"
        case Branch():
            what = f"Branch on {s.predicate.name!r}"
    at = f" ({s.origin})" if s.origin else ""
    return f"{outer}{', ' if outer else ''}statement {k}, {what}{at}"


def _axes(at: Scope, axes: Sequence[Axis]) -> dict[str, Axis]:
    """Every axis that a body may use: its own, none of which shadows another, and those of the loops."""
    known = dict(at.loops)
    for a in axes:
        at.check(a.name not in known, f"axis {a.name!r} appears twice")
        at.check(a.extent >= 0, f"axis {a.name!r} has a negative extent")
        known[a.name] = a
    return known


def _compute(at: Scope, s: Compute) -> None:
    known = _axes(at, (*s.axes, *s.reduce))
    extents = tuple(a.extent for a in s.axes)
    at.check(extents == s.out.shape, f"axes {extents} do not give the shape {s.out.shape}")
    _expression(at, s.body, known)
    body = s.body.dtype
    at.check(s.combiner is None or not body.is_float8, f"{s.combiner!r} of {body}")
    match s.combiner:
        case None:
            at.check(not s.reduce, "reduce axes without a combiner")
        case "any" | "all":
            at.check(body is DType.BOOL, f"{s.combiner!r} of {body}")
        case "sum" | "prod":
            at.check(body is not DType.BOOL, f"{s.combiner!r} of {body}")
        case _:
            at.check(s.combiner in COMBINERS, f"unknown combiner {s.combiner!r}")
    _bounds(at, (s.body,), s.axes + s.reduce)
    _live(at, s)
    for x in loads(s.body):
        _defined(at, x, s.live, s.body)
    at.define(s.out)
    along = parts_of(s)
    if any(along):
        at.partial[s.out.name] = along


def _live(at: Scope, s: Compute) -> None:
    names = [x.axis.name for x in s.live]
    at.check(len(set(names)) == len(names), "an axis is bounded twice")
    for x in s.live:
        at.check(x.axis in (*s.axes, *s.reduce), f"axis {x.axis.name!r} is bounded and not its own")
        at.check(x.ends != (None, None), f"axis {x.axis.name!r} is bounded by nothing")
        others = [a.axis for a in x.at]
        apart = set(others) <= {*s.axes} - {x.axis} and len(set(others)) == len(others)
        runs = all(a.run > 0 for a in x.at)
        at.check(apart and runs, f"axis {x.axis.name!r} has no bounds for each of {others}")
        if x.within is not None:
            at.use(x.within)
            size = isinstance(x.within, SizeTensor) and x.within.most <= x.axis.extent
            at.check(size, f"{x.within.name!r} is no size of axis {x.axis.name!r}")
        shape = tuple(a.extent for a in x.at)
        for t in (t for t in x.ends if t is not None):
            at.use(t)
            fits = (t.shape, t.dtype) == (shape, DType.I64)
            at.check(fits, f"the bound {t.name!r} is {show_type(t)}")
            inside = not isinstance(t, SizeTensor) or t.most <= x.axis.extent
            at.check(inside, f"the bound {t.name!r} may be beyond axis {x.axis.name!r}")
        positions = x.axis in s.reduce and s.combiner in ("argmax", "argmin")
        at.check(not positions, f"{s.combiner!r} over a part of axis {x.axis.name!r}")


def _defined(at: Scope, x: Load, live: Sequence[Live], body: Expr) -> None:
    """What is undefined of the tensor of `x` is not read in `body` under these bounds."""
    by_axis: dict[Expr, Part | None] = {y.axis: y.part(x.index) for y in live}
    for k, (i, wanted) in enumerate(zip(x.index, at.partial.get(x.tensor.name, ()), strict=False)):
        bounded = wanted is None or wanted in (by_axis.get(i), held_before(i))
        bounded = bounded or wanted == tested(body, x, k)
        at.check(bounded, f"an undefined part of {x.tensor.name!r} may be read")


def _scatter(at: Scope, s: Scatter) -> None:
    known = _axes(at, s.axes)
    at.use(s.base)
    at.same_type(s.base, s.out)
    rank = len(s.out.shape)
    at.check(len(s.index) == rank, f"{len(s.index)} indices for {rank} dimensions")
    for e in (*s.index, s.value):
        _expression(at, e, known)
    for e in s.index:
        at.check(e.dtype is DType.I64, f"index {printer.show_expr(e)} is {e.dtype}")
    if s.combiner is not None:
        logical = s.combiner in ("any", "all")
        fits = s.combiner in COMBINERS and s.combiner not in ("argmax", "argmin")
        at.check(fits, f"a Scatter cannot combine with {s.combiner!r}")
        at.check(not s.out.dtype.is_float8, f"{s.combiner!r} of {s.out.dtype}")
        number = s.combiner in ("max", "min") or logical == (s.out.dtype is DType.BOOL)
        at.check(number, f"{s.combiner!r} of {s.out.dtype}")
    _bounds(at, (Load(s.out, s.index), s.value), s.axes)
    for x in (x for e in (*s.index, s.value) for x in loads(e)):
        _defined(at, x, (), s.value)
    at.define(s.out)


def _loop(at: Scope, s: Loop) -> None:
    at.check(s.axis.extent >= 0, f"axis {s.axis.name!r} has a negative extent")
    at.check(s.axis.name not in at.loops, f"axis {s.axis.name!r} is an enclosing loop's as well")
    at.check(s.count is None or s.predicate is None, "it has both a count and a predicate")
    if s.count is not None:
        at.use(s.count)
        fits = s.count.shape == () and s.count.dtype is DType.I64
        at.check(fits, f"its count is {show_type(s.count)}, not a scalar int64")
    inside = at.inner(at.where, {**at.loops, s.axis.name: s.axis})
    made = {x.out: x for x in statements(s.body) if isinstance(x, Compute)}
    for c in s.carried:
        at.see(c.init)
        inside.define(c.param)
        # Of all four tensors of a carry the same is undefined: what the body gives says what.
        result = made.get(c.result)
        along = () if result is None else parts_of(result)
        known = at.partial.get(c.init.name, ())
        both = joined(along, known)
        if any(both):
            at.partial[c.param.name] = at.partial[c.out.name] = both
        at.part(c.init, both)
    _body(inside, s.body)
    for c in s.carried:
        inside.part(c.result, at.partial.get(c.param.name, ()))
        for other in (c.param, c.result, c.out):
            at.same_type(c.init, other)
        at.define(c.out)
    if s.predicate is not None:
        fits = s.predicate.shape == () and s.predicate.dtype is DType.BOOL
        at.check(fits, f"its predicate is {show_type(s.predicate)}, not a scalar bool")
        carried = any(c.result == s.predicate for c in s.carried)
        at.check(carried, f"its predicate {s.predicate.name!r} is no carry's result")
    for k in s.stacked:
        inside.see(k.value)
        if known := at.partial.get(k.value.name):
            at.partial[k.out.name] = (None, *(x and x.behind(1) for x in known))
        want = Tensor(k.out.name, (s.axis.extent, *k.value.shape), k.value.dtype)
        at.check(
            k.out == want, f"stack {k.out.name!r} is {show_type(k.out)}, not {show_type(want)}"
        )
        at.define(k.out)


def _branch(at: Scope, s: Branch) -> None:
    at.use(s.predicate)
    fits = s.predicate.shape == () and s.predicate.dtype is DType.BOOL
    at.check(fits, f"its predicate is {show_type(s.predicate)}, not a scalar bool")
    then, otherwise = at.inner(at.where, at.loops), at.inner(at.where, at.loops)
    _body(then, s.then)
    _body(otherwise, s.otherwise)
    for o in s.outs:
        then.see(o.then)
        otherwise.see(o.otherwise)
        sides = (at.partial.get(t.name, ()) for t in (o.then, o.otherwise))
        both = joined(*sides)
        if any(both):
            at.partial[o.out.name] = both
            then.part(o.then, both)
            otherwise.part(o.otherwise, both)
        at.same_type(o.then, o.otherwise)
        at.same_type(o.then, o.out)
        at.define(o.out)


def _bounds(at: Scope, bodies: Sequence[Expr], axes: Sequence[Axis]) -> None:
    for e in bodies:
        found = find_violation(e, (*axes, *at.loops.values()))
        at.check(found is None, found or "")


def _expression(at: Scope, e: Expr, axes: Mapping[str, Axis]) -> None:
    """Checks every node of `e` once, even if shared."""
    seen: set[int] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        problem = _node(at, node, axes)
        if problem:
            raise VerificationError(f"{at.where}: {problem}: {printer.show_expr(node)}")
        stack.extend(children(node))


def _node(at: Scope, e: Expr, axes: Mapping[str, Axis]) -> str | None:
    """What is wrong with this node."""
    match e:
        case Const():
            return _constant(e)
        case Axis(name):
            return None if axes.get(name) == e else f"axis {name!r} is not known here"
        case Load(tensor, index):
            at.see(tensor)
            if len(index) != len(tensor.shape):
                return f"{len(index)} indices for {len(tensor.shape)} dimensions"
            wrong = [i for i in index if i.dtype is not DType.I64]
            return f"an index is {wrong[0].dtype}, not int64" if wrong else None
        case Cast():
            return None
        case Select(cond, then, otherwise):
            if cond.dtype is not DType.BOOL:
                return f"the condition is {cond.dtype}"
            same = then.dtype is otherwise.dtype
            return None if same else f"the sides are {then.dtype} and {otherwise.dtype}"
        case Unary(op, x):
            return None if takes_unary(op, x.dtype) else f"no {op!r} of {x.dtype}"
        case Binary(op, a, b):
            if a.dtype is not b.dtype:
                return f"the sides are {a.dtype} and {b.dtype}"
            return None if takes_binary(op, a.dtype) else f"no {op!r} of {a.dtype}"


def _constant(e: Const) -> str | None:
    match e.value:
        case str():
            good = e.dtype.is_float and e.value in ("inf", "-inf", "nan")
        case bool():
            good = e.dtype is DType.BOOL
        case int():
            span = type_range(e.dtype)
            good = e.dtype.is_float or (
                e.dtype.is_int and span is not None and span.lo <= e.value <= span.hi
            )
        case float():
            good = e.dtype.is_float and abs(e.value) < float("inf")
    return None if good else f"{e.value!r} is no literal of {e.dtype}"
