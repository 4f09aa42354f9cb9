"""Rounds factors of TF32 products in the statement that computes them, not in their readers (CUDA).

Tensor cores truncate the float32 bits beyond TF32. A product in TF32 rounds its factors first, each as often as a task reads it;
warpgroups, which multiply operands directly from on-chip memory, rewrite them there. A tensor that only such products read is rounded
once, by the statement that computes it: an activation before it is stored, a weight when it is copied into another order. The same holds
through a max pooling, and for a loop carry if it holds for its initial value and its result.
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
    """`program` with tensors that only products of TF32 read rounded to it."""
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
    """Whether `c` can round its result."""
    return c.combiner in MONOTONE and c.out.dtype is c.body.dtype is DType.F32


def _rounded(program: Program) -> set[str]:
    """Tensors that are read only as factors of products in TF32, or pass unchanged into tensors of which that is true, and that their
    statements can round: in families, as a loop's carried values form them."""
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


FACTOR, OTHER = "a factor", "another use"  # cannot be names of tensors


def _reads(every: Sequence[Statement]) -> dict[str, set[str]]:
    """The uses of each tensor where it is loaded: a factor of a product in TF32; by name, a tensor computed by selections and
    comparisons alone, before which it may be rounded as well as after; another use."""
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
    """Whether `e` is `x` or another value, whatever these are, and does not otherwise depend on `x`."""
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
    """How often loops begin with each tensor or carry it on, and the families: sets of tensors that pass their value to one another."""
    carried, families = Counter[str](), list[set[str]]()
    for s in every:
        for c in s.carried if isinstance(s, Loop) else ():
            carried.update((c.init.name, c.result.name))
            carried.update({c.param.name: 0, c.out.name: 0})
            own = {t.name for t in (c.init, c.param, c.result, c.out)}
            near = [f for f in families if f & own]
            families = [f for f in families if not f & own] + [own.union(*near)]
    return carried, families
