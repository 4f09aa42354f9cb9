"""Products read weights as they are stored: what decodes them becomes part of their factors, so that no decoded copy is ever stored.

A factor keeps the type that its decoding rounds to, which tensor cores may take; nothing simplifies that away afterwards.
"""

from collections.abc import Set

from monotile.analysis.contraction import contraction, factors
from monotile.analysis.reuse import footprint
from monotile.analysis.states import steady_weights
from monotile.ir.expr import Load, loads
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.fusion.inline import inline_chosen
from monotile.transform.simplify.dce import eliminate_dead_code


def inline_decoding(program: Program) -> Program:
    """`program` with decoded weights inlined into the products that multiply them."""
    steady = steady_weights(program)

    def decide(p: Compute, consumer: Statement) -> bool:
        return decodes(p, steady) and isinstance(consumer, Compute) and _multiplies(consumer, p)

    return eliminate_dead_code(inline_chosen(program, decide))


def decodes(p: Compute, steady: Set[str]) -> bool:
    """Whether `p` is computed element by element of weights alone that take fewer bytes than it does. steady: weights that nothing changes."""
    if p.combiner is not None or not p.out.dtype.is_float:
        return False
    read = set(loads(p.body))
    if not read or not {x.tensor.name for x in read} <= steady:
        return False
    extents = {a.name: a.extent for a in p.axes}
    return sum(footprint(x, extents) for x in read) < p.out.nbytes


def _multiplies(s: Compute, p: Compute) -> bool:
    """Whether `s` is a sum of products, of which one factor is an element of `p`."""
    if contraction(s) is None:
        return False
    return any(isinstance(f, Load) and f.tensor == p.out for f in factors(s))
