"""Stacks of loops that may end early: rows of iterations that did not run are read as zeros.

Such a loop counts its iterations in a carry. Readers of a stack read a masked copy, with zeros from that count on, which is then inlined
into them like any other pointwise Compute.
"""

import msgspec

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Load, Select, Tensor, add, const, idx
from monotile.ir.program import Carry, Compute, Loop, Program, Stack, Statement, compute
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, same, with_body


def mask_stacks(program: Program) -> Program:
    """`program` with stacks of loops that may end early read through masks."""
    taken = Names(program)

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            inner = map_bodies(s, go)
            if isinstance(inner, Loop) and inner.ends_early and inner.stacked:
                out += _masked(inner, taken)
            else:
                out.append(inner)
        return body if same(tuple(out), body) else tuple(out)

    return with_body(program, go(program.body))


def _masked(s: Loop, taken: Names) -> list[Statement]:
    """The loop with a count of its iterations and stacks under other names, and the masks."""
    zero, before, after, ran = (
        Tensor(taken.fresh(f"{s.axis.name}_{what}"), (), DType.I64)
        for what in ("none", "before", "ran", "all")
    )
    start = compute(zero, lambda: idx(0), origin=s.origin)
    step = compute(after, lambda: add(Load(before, ()), idx(1)), origin=s.origin)
    stacked: list[Stack] = []
    masks: list[Compute] = []
    for k in s.stacked:
        raw = Tensor(taken.fresh(f"{k.out.name}_run"), k.out.shape, k.out.dtype)
        stacked.append(Stack(k.value, raw))

        def row(first: Axis, *rest: Axis, raw: Tensor = raw) -> Select:
            value = Load(raw, (first, *rest))
            return Select(Binary("lt", first, Load(ran, ())), value, const(0, raw.dtype))

        masks.append(compute(k.out, row, origin=s.origin))
    loop = msgspec.structs.replace(
        s,
        carried=(*s.carried, Carry(zero, before, after, ran)),
        stacked=tuple(stacked),
        body=(*s.body, step),
    )
    return [start, loop, *masks]
