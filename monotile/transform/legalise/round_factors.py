"""Factors of TF32, rounded where they are made instead of where they are read (CUDA).

Tensor cores cut off what a float32 has beyond TF32. A product that may be of TF32 rounds its factors first, each as often as a task reads
it, and warpgroups, which multiply operands as they lie in on-chip memory, rewrite them there. What only such products read is rounded
once, by the statement that makes it: an activation before it is stored, a weight when it is copied into another order.
"""

from collections import Counter

import msgspec

from monotile.analysis.contraction import in_tf32, uncast
from monotile.analysis.masked import masked
from monotile.analysis.uses import Uses
from monotile.ir.dtype import DType
from monotile.ir.expr import TF32_FACTORS, Binary, Expr, Unary, loads
from monotile.ir.program import Compute, Program, Scatter, Statement, expressions, statements
from monotile.targets.target import Target
from monotile.transform.rewrite import map_program

MONOTONE = (None, "max", "min")  # combiners whose result is rounded if its terms are


def round_factors(program: Program, target: Target) -> Program:
    """`program` with what only products of TF32 read rounded to it."""
    if "mma.sync" not in target.instructions:
        return program
    found = _only_factors(program)
    every = statements(program.body)
    made = {s.out.name for s in every if isinstance(s, Compute) and _rounds(s) and s.out.name in found}  # fmt: skip

    def known(e: Expr) -> Expr:
        x = masked(uncast(e))
        assert isinstance(e, Unary)
        return Unary("is_tf32", e.x) if x and x.load.tensor.name in made else e

    def go(s: Statement) -> Statement:
        if not isinstance(s, Compute):
            return s
        body = s.body
        if in_tf32(s) and isinstance(body, Binary):
            body = Binary(body.op, known(body.a), known(body.b))
        if s.out.name in made:
            body = Unary("to_tf32", body)
        return s if body == s.body else msgspec.structs.replace(s, body=body)

    return map_program(program, go) if made else program


def _rounds(c: Compute) -> bool:
    """Whether `c` can round what it makes."""
    return c.combiner in MONOTONE and c.out.dtype is c.body.dtype is DType.F32


def _only_factors(program: Program) -> set[str]:
    """Tensors of which all that is read are factors of products that may be of TF32."""
    as_factor, read = Counter[str](), Counter[str]()
    for s in statements(program.body):
        if isinstance(s, Compute | Scatter):
            read.update(x.tensor.name for e in expressions(s) for x in loads(e))
        if isinstance(s, Compute) and in_tf32(s) and isinstance(s.body, Binary):
            for side in {s.body.a, s.body.b}:
                x = masked(uncast(side))
                if x is not None and isinstance(side, Unary) and side.op in TF32_FACTORS:
                    as_factor[x.load.tensor.name] += 1
    whole = Uses(program).whole
    return {n for n, count in as_factor.items() if count == read[n] and n not in whole}
