"""Fuses the decoding of weights, and of states that are updated in place, into the products that read them, so that no decoded copy is ever
stored.

A factor keeps the type that its decoding rounds to, which tensor cores take.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Set

import msgspec

from monotile.analysis.contraction import contraction, factors
from monotile.analysis.cost import cost
from monotile.analysis.reuse import footprint
from monotile.analysis.states import steady_weights
from monotile.ir.expr import Load, Tensor, binary, idx, loads, substitute
from monotile.ir.program import Compute, Program, Scatter, Statement, statements, updates
from monotile.transform.fusion.inline import inline_chosen
from monotile.transform.rewrite import map_program
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.simplify import simplify_compute

TERMS = 8  # of a sum that is written out
MOST = 64.0  # cost of a decoding (`analysis.cost`)


def inline_decoding(program: Program) -> Program:
    """`program` with decoded weights inlined into the products that multiply them; the same object if there are none."""
    given, program = program, _with_short_sums(program)
    made, literal = _of_weights(program)
    products = {
        s.out.name: name
        for s in statements(program.body)
        if isinstance(s, Compute)
        for name in _multiplied(s)
        if name in made.keys() - literal
    }
    if not products:
        return given
    whole = inline_chosen(
        program, lambda p, s: isinstance(s, Compute) and {p.out.name, s.out.name} <= made.keys()
    )
    steady = _held(program)
    wanted = {
        s.out.name
        for s in statements(whole.body)
        if isinstance(s, Compute) and s.out.name in products.values()
        if _decodes(simplify_compute(s), steady)
    }
    parts = _behind(wanted, made)

    def decide(p: Compute, consumer: Statement) -> bool:
        if not isinstance(consumer, Compute):
            return False
        if consumer.out.name in parts:
            return p.out.name in parts
        return p.out.name in wanted and products.get(consumer.out.name) == p.out.name

    def settled(s: Statement) -> Statement:
        decoded = isinstance(s, Compute) and products.get(s.out.name) in wanted
        return simplify_compute(s) if isinstance(s, Compute) and decoded else s

    if not wanted:
        return given
    return eliminate_dead_code(map_program(inline_chosen(program, decide), settled))


def _with_short_sums(program: Program) -> Program:
    """`program` with sums of few terms that read such tensors alone written out: rows of several codebooks, planes of bits. Not those of
    products, of which each factor has several uses."""
    from_weights = set(_held(program))

    def written(s: Statement) -> Statement:
        if not isinstance(s, Compute) or not {x.tensor.name for x in loads(s.body)} <= from_weights:
            return s
        from_weights.add(s.out.name)
        terms = math.prod(a.extent for a in s.reduce)
        if s.combiner != "sum" or s.live or not 0 < terms <= TERMS or contraction(s) is not None:
            return s
        points = itertools.product(*(range(a.extent) for a in s.reduce))
        names = [a.name for a in s.reduce]
        each = (substitute(s.body, dict(zip(names, map(idx, p), strict=True))) for p in points)
        body = functools.reduce(lambda a, b: binary("add", a, b), each)
        return msgspec.structs.replace(s, reduce=(), combiner=None, body=body)

    return map_program(program, written)


def _of_weights(program: Program) -> tuple[dict[str, Compute], frozenset[str]]:
    """The Computes that are element-wise in such tensors and in axes alone, by name, and the names of those in axes alone (shifts, orders,
    what is overwritten)."""
    steady, found, literal = _held(program), dict[str, Compute](), set[str]()
    for s in statements(program.body):
        if not isinstance(s, Compute) or s.combiner is not None:
            continue
        read = {x.tensor.name for x in loads(s.body)}
        if read <= steady | found.keys():
            found[s.out.name] = s
            if read <= literal:
                literal.add(s.out.name)
    return found, frozenset(literal)


def _held(program: Program) -> frozenset[str]:
    """Weights that never change, and states with their new elements (a cache of codes)."""
    made = {s.out.name for s in statements(program.body) if isinstance(s, Scatter)}
    return steady_weights(program) | {u.result.name for u in updates(program)} & made


def _multiplied(s: Compute) -> Iterator[str]:
    """The tensors that are factors of a sum of products."""
    if contraction(s) is not None:
        yield from (f.tensor.name for f in factors(s) if isinstance(f, Load))


def _behind(names: Set[str], made: Mapping[str, Compute]) -> frozenset[str]:
    """These tensors and their transitive operands."""
    found, left = set(names), list(names)
    while left:
        inner = {x.tensor.name for x in loads(made[left.pop()].body)} & made.keys() - found
        found |= inner
        left.extend(inner)
    return frozenset(found)


def _decodes(p: Compute, steady: Set[str]) -> bool:
    """Whether all operands of `p` take fewer bytes than its result. steady: as in `_held`."""
    read, extents = dict[Tensor, int](), {a.name: a.extent for a in p.axes}
    if not p.out.dtype.is_float:
        return False
    for x in set(loads(p.body)):
        if x.tensor.name not in steady:
            return False
        read[x.tensor] = min(read.get(x.tensor, 0) + footprint(x, extents), x.tensor.nbytes)
    return sum(read.values()) < p.out.nbytes and cost(p.body) <= MOST
