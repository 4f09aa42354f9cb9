"""Factors of TF32, rounded where they are made instead of where they are read (CUDA).

Tensor cores cut off what a float32 has beyond TF32. A product that may be of TF32 rounds its factors first, each as often as a task reads
it, and warpgroups, which multiply operands as they lie in on-chip memory, rewrite them there. What only such products read is rounded
once, by the statement that makes it: an activation before it is stored, a weight when it is copied into another order. So is what passes through a
pooling of maxima first, and what a loop carries, where that is true of all that it begins with and hands on.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from monotile.analysis.contraction import in_tf32, uncast
from monotile.analysis.masked import masked
from monotile.analysis.uses import references
from monotile.ir.dtype import DType
from monotile.ir.expr import TF32_FACTORS, Binary, Const, Expr, Load, Select, Unary, loads
from monotile.ir.program import Compute, Loop, Program, Scatter, Statement, expressions, statements
from monotile.targets.target import Target
from monotile.transform.rewrite import map_program

MONOTONE = (None, "max", "min")  # combiners whose result is rounded if its terms are


def round_factors(program: Program, target: Target) -> Program:
    """`program` with what only products of TF32 read rounded to it."""
    if "mma.sync" not in target.instructions:
        return program
    rounded = _rounded(program)

    def known(e: Expr) -> Expr:
        x = masked(uncast(e))
        assert isinstance(e, Unary)
        return Unary("is_tf32", e.x) if x and x.load.tensor.name in rounded else e

    def go(s: Statement) -> Statement:
        if not isinstance(s, Compute):
            return s
        body = s.body
        if in_tf32(s) and isinstance(body, Binary):
            body = Binary(body.op, known(body.a), known(body.b))
        if s.out.name in rounded:
            body = Unary("to_tf32", body)
        return s if body == s.body else msgspec.structs.replace(s, body=body)

    return map_program(program, go) if rounded else program


def _rounds(c: Compute) -> bool:
    """Whether `c` can round what it makes."""
    return c.combiner in MONOTONE and c.out.dtype is c.body.dtype is DType.F32


def _rounded(program: Program) -> set[str]:
    """Tensors of which all that is read are factors of products that may be of TF32, or pass into tensors of which that is true, and which
    their statements can round: families, as a loop's carried values make them."""
    every = [*statements(program.body)]
    reads = _reads(every)
    whole, _ = references(program.body)
    whole.update(t.name for t in program.outputs)
    carried, families = _families(every)
    makers = {s.out.name for s in every if isinstance(s, Compute) and _rounds(s)}
    given = {t.name for s in every if isinstance(s, Loop) for c in s.carried for t in (c.param, c.out)}  # fmt: skip
    alone = [{n} for n in reads if n not in carried]
    left = [f for f in (*families, *alone) if f & reads.keys() and f <= makers | given]
    while True:
        found = {name for family in left for name in family}
        kept = [
            family
            for family in left
            if all(
                reads.get(n, set()) <= found | {FACTOR} and whole[n] == carried[n] for n in family
            )
        ]
        if len(kept) == len(left):
            return found
        left = kept


FACTOR, OTHER = "a factor", "another use"  # what is no name of a tensor


def _reads(every: Sequence[Statement]) -> dict[str, set[str]]:
    """What becomes of each tensor where it is loaded: a factor of a product that may be of TF32; what is made of it by no more than choices and
    comparisons, before which it may be rounded as well as after them, by name; another use."""
    found: dict[str, set[str]] = defaultdict(set)
    for s in every:
        if not isinstance(s, Compute | Scatter):
            continue
        passed = s.out.name if isinstance(s, Compute) and _rounds(s) else OTHER
        sides = s.body if isinstance(s, Compute) and in_tf32(s) else None
        for e in (sides.a, sides.b) if isinstance(sides, Binary) else expressions(s):
            x = masked(uncast(e))
            factor = isinstance(e, Unary) and e.op in TF32_FACTORS and x is not None
            for y in loads(e):
                use = FACTOR if factor and x and y == x.load else passed if _passes(e, y) else OTHER
                found[y.tensor.name].add(use)
    return found


def _passes(e: Expr, x: Load) -> bool:
    """Whether `e` is `x` or another value, whatever these are, and nothing else looks at `x`."""
    match e:
        case Load():
            return e == x or x not in loads(e)
        case Select(cond, then, otherwise):
            return x not in loads(cond) and _passes(then, x) and _passes(otherwise, x)
        case Binary("max" | "min", a, b):
            return _passes(a, x) and _passes(b, x)
        case _:
            return isinstance(e, Const)


def _families(every: Sequence[Statement]) -> tuple[Counter[str], list[set[str]]]:
    """How often loops begin with each tensor, or carry it on; and the sets of those whose values become one another."""
    carried, families = Counter[str](), list[set[str]]()
    for s in every:
        for c in s.carried if isinstance(s, Loop) else ():
            carried.update((c.init.name, c.result.name))
            carried.update({c.param.name: 0, c.out.name: 0})
            own = {t.name for t in (c.init, c.param, c.result, c.out)}
            near = [f for f in families if f & own]
            families = [f for f in families if not f & own] + [own.union(*near)]
    return carried, families
