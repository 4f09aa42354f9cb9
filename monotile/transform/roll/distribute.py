"""Loop distribution: products that do not depend on the previous iteration are computed for all iterations at once, before the loop.

A recurrent layer multiplies each step's input by the same weights: before the loop that is one product with a row for each step, which
reads the weights once (Allen and Kennedy's loop distribution; cuDNN's input product).
"""

import msgspec

from monotile.analysis.contraction import contraction, factors
from monotile.ir.expr import Axis, Expr, Load, Tensor, axes_of, loads, map_loads, substitute
from monotile.ir.program import (
    Compute,
    Loop,
    Program,
    Statement,
    compute,
    defined,
    statements,
    used,
    wholes,
)
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_exprs, with_body


def distribute(program: Program) -> Program:
    """`program` with such products before its loops; the same object if there are none."""
    names, changing = Names(program), program.changing
    weights = frozenset(w.tensor.name for w in program.weights)

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            s = map_bodies(s, go)
            out += _apart(s, names, changing, weights) if isinstance(s, Loop) else (s,)
        return tuple(out)

    return with_body(program, go(program.body))


def _apart(
    loop: Loop, names: Names, changing: frozenset[str], weights: frozenset[str]
) -> tuple[Statement, ...]:
    """`loop` after its products."""
    if loop.ends_early or loop.axis.extent < 2:
        return (loop,)
    made = {t.name for s in loop.body for t in defined(s)} | {c.param.name for c in loop.carried}
    whole = {t.name for s in (loop, *statements(loop.body)) for t in wholes(s)}
    moved = {
        s.out.name: _for_all(s, loop.axis, names)
        for s in loop.body
        if isinstance(s, Compute)
        and s.out.name not in whole
        and not (made | changing) & {t.name for t in used(s)}
        and _shares_weights(s, loop.axis, weights)
    }
    if not moved:
        return (loop,)

    def read(x: Load) -> Expr:
        before = moved.get(x.tensor.name)
        return Load(before.out, (loop.axis, *x.index)) if before else x

    def rest(body: Body) -> Body:
        kept = (s for s in body if not (isinstance(s, Compute) and s.out.name in moved))
        return tuple(map_exprs(map_bodies(s, rest), lambda e: map_loads(e, read)) for s in kept)

    return (*moved.values(), msgspec.structs.replace(loop, body=rest(loop.body)))


def _shares_weights(c: Compute, axis: Axis, weights: frozenset[str]) -> bool:
    """Whether `c` multiplies an operand that varies from iteration to iteration by weights that do not."""
    if c.live or contraction(c) is None:
        return False
    a, b = factors(c)
    same, other = (b, a) if axis in axes_of(a) else (a, b)
    return (
        axis in axes_of(other)
        and axis not in axes_of(same)
        and {x.tensor.name for x in loads(same)} <= weights
    )


def _for_all(c: Compute, axis: Axis, names: Names) -> Compute:
    """`c` for all iterations, with a row for each."""
    out = Tensor(names.fresh(f"{c.out.name}_all"), (axis.extent, *c.out.shape), c.out.dtype)

    def body(k: Expr, *i: Expr) -> Expr:
        own = zip((*c.axes, *c.reduce), i, strict=True)
        return substitute(c.body, {axis.name: k} | {a.name: x for a, x in own})

    extents = tuple(a.extent for a in c.reduce)
    return compute(out, body, reduce=extents, combiner=c.combiner, origin=c.origin)
