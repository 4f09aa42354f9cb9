"""Removes concatenations that only products read: each product copies the parts from where they are stored, and the whole is never
stored."""

import msgspec

from monotile.analysis.contraction import contraction, factors
from monotile.analysis.masked import choice
from monotile.analysis.uses import Uses
from monotile.ir.expr import Load, map_loads
from monotile.ir.program import Compute, Program, Statement, statements, used
from monotile.kernels.common.product import product
from monotile.kernels.draft import Context
from monotile.targets.target import Target
from monotile.transform.fusion.inline import element_of, inline_chosen
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.simplify import simplify_expr


def read_parts(program: Program, target: Target, context: Context) -> Program:
    """`program` without the concatenations whose readers are all products that copy whole vectors of the parts."""
    whole = Uses(program).whole
    found = {
        s.out.name: s
        for s in statements(program.body)
        if isinstance(s, Compute) and s.out.name not in whole and _is_concatenation(s)
    }
    for s in statements(program.body):
        for name in {t.name for t in used(s)} & found.keys():
            if not _copied(found[name], s, target, context):
                del found[name]
    if not found:
        return program
    return eliminate_dead_code(inline_chosen(program, lambda p, _: p.out.name in found))


def _is_concatenation(p: Compute) -> bool:
    found = choice(p.body) if p.combiner is None and p.body.dtype is p.out.dtype else None
    return found is not None and len(found) > 1


def _copied(p: Compute, s: Statement, target: Target, context: Context) -> bool:
    """Whether `s` is a product that can copy whole vectors of a factor if it reads that factor instead of `p`."""
    if not isinstance(s, Compute) or contraction(s) is None:
        return False
    if sum(isinstance(x, Load) and x.tensor == p.out for x in factors(s)) != 1:
        return False
    body = map_loads(
        s.body, lambda x: simplify_expr(element_of(p, x.index)) if x.tensor == p.out else x
    )
    made = product(msgspec.structs.replace(s, body=body), context.tables, target)
    if made is None:
        return False
    sides = (made.left, made.right)
    return all(
        o.copy == "async" and o.vector * made.dtype.itemsize == target.vector_bytes for o in sides
    )
