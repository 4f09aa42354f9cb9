"""Rerolls a tree of Selects over equal segments of an index, whose branches differ only in literals, into one body.

Stacking or concatenating n tensors is such a tree. After rolling or horizontal fusion has made the n
tensors parts of one, its branches differ only in the number of the part, which is the number of the segment.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec

from monotile.analysis.linear import linear, total
from monotile.analysis.skeleton import Skeleton, skeleton_of_expr, visit_expr
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    binary,
    idx,
    mul,
    rebuild,
    sub,
)
from monotile.ir.intervals import interval
from monotile.ir.program import Program
from monotile.transform.names import Names
from monotile.transform.rewrite import map_exprs, map_program
from monotile.transform.roll.tables import Tables


def reroll_selects(program: Program) -> Program:
    """`program` with such trees rerolled; the same object if there are none."""
    tables = Tables(program, Names(program))
    new = map_program(program, lambda s: map_exprs(s, lambda e: _expression(e, tables)))
    if new is program:
        return program
    return msgspec.structs.replace(new, weights=tables.used_in(new.body, new.outputs))


def _expression(e: Expr, tables: Tables) -> Expr:
    """`e` with every tree of Selects rerolled, outer trees before those in their branches."""
    if isinstance(e, Select):
        rolled = _roll_tree(e, tables)
        if rolled is not e:
            return _expression(rolled, tables)
    return rebuild(e, lambda x: _expression(x, tables))


class _Segment(NamedTuple):
    """`value` for lo <= index <= hi."""

    lo: int
    hi: int
    value: Expr

    @property
    def length(self) -> int:
        return self.hi - self.lo + 1


Terms = tuple[tuple[int, Expr], ...]


class _Test(NamedTuple):
    """sum(terms) `op` bound."""

    terms: Terms
    op: str
    bound: int


_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def _test(cond: Expr) -> _Test | None:
    """A comparison of an index with a literal."""
    match cond:
        case Binary(op, a, Const(value, DType.I64)) if op in _FLIPPED:
            x = linear(a)
        case Binary(op, Const(value, DType.I64), b) if op in _FLIPPED:
            x, op = linear(b), _FLIPPED[op]
        case _:
            return None
    return _Test(x.terms, op, int(value) - x.constant)


def _split(e: Expr, terms: Terms, lo: int, hi: int) -> list[_Segment]:
    """The segments of sum(terms) from lo to hi, one per branch of the tree `e`."""
    if lo > hi:
        return []
    t = _test(e.cond) if isinstance(e, Select) else None
    if t is None or t.terms != terms or not isinstance(e, Select):
        return [_Segment(lo, hi, e)]
    then, otherwise, c = e.then, e.otherwise, t.bound
    if t.op in ("ge", "gt", "ne"):
        then, otherwise = otherwise, then
    if t.op in ("eq", "ne"):
        return [
            *_split(otherwise, terms, lo, min(hi, c - 1)),
            *_split(then, terms, max(lo, c), min(hi, c)),
            *_split(otherwise, terms, max(lo, c + 1), hi),
        ]
    below = c if t.op in ("lt", "ge") else c + 1  # `then` holds for values < below
    return [
        *_split(then, terms, lo, min(hi, below - 1)),
        *_split(otherwise, terms, max(lo, below), hi),
    ]


def _roll_tree(e: Select, tables: Tables) -> Expr:
    t = _test(e.cond)
    if t is None:
        return e
    index = total(t.terms, idx(0))
    span = interval(index)
    if span is None or span.hi - span.lo > 1 << 32:
        return e
    segments = _split(e, t.terms, span.lo, span.hi)
    if len(segments) < 2:
        return e
    merged: list[_Segment] = []
    skeletons = [skeleton_of_expr(s.value) for s in segments]
    first = 0
    while first < len(segments):
        count = _alike(segments[first:], skeletons[first:], tables)
        run = segments[first : first + count]
        value = run[0].value
        if count > 1:
            value = _one(run, skeletons[first : first + count], index, tables)
        merged.append(_Segment(run[0].lo, run[-1].hi, value))
        first += count
    return e if len(merged) == len(segments) else _tree(merged, index)


def _tree(segments: Sequence[_Segment], index: Expr) -> Expr:
    if len(segments) == 1:
        return segments[0].value
    mid = len(segments) // 2
    cond = binary("lt", index, idx(segments[mid].lo))
    return Select(cond, _tree(segments[:mid], index), _tree(segments[mid:], index))


def _alike(segments: Sequence[_Segment], skeletons: Sequence[Skeleton], tables: Tables) -> int:
    """Number of segments from the first on that are one body with evenly stepping literals."""
    first = skeletons[0]
    count = 1
    while count < len(segments):
        here, before = skeletons[count], skeletons[count - 1]
        if here.key != first.key or segments[count].length != segments[0].length:
            break
        if not all(
            a == b or (a.name in tables.weights and b.name in tables.weights)
            for a, b in zip(first.uses, here.uses, strict=True)
        ):
            break
        # Literals step evenly; the second segment gives the step.
        second = skeletons[1].constants
        if not all(
            b - a == y - x
            for a, b, x, y in zip(
                before.constants, here.constants, first.constants, second, strict=True
            )
        ):
            break
        count += 1
    return count


def _one(
    run: Sequence[_Segment], skeletons: Sequence[Skeleton], index: Expr, tables: Tables
) -> Expr:
    """The one body of `run`."""
    start, length = run[0].lo, run[0].length
    number = binary("floordiv", sub(index, idx(start)), idx(length))
    sources = []
    for column in zip(*(k.uses for k in skeletons), strict=True):
        same = all(t == column[0] for t in column)
        sources.append((column[0], False) if same else (tables.table(column), True))
    steps = [b - a for a, b in zip(skeletons[0].constants, skeletons[1].constants, strict=True)]
    whole = visit_expr(run[0].value, _Segments(number, sources, steps), {})
    return _remainders(whole, linear(index).terms, start, length)


class _Segments:
    """Rewrites the first segment's body for any segment. Visits slots and literals in order."""

    def __init__(
        self, number: Expr, sources: Sequence[tuple[Tensor, bool]], steps: Sequence[int]
    ) -> None:
        self.number = number
        self.sources = iter(sources)
        self.steps = iter(steps)

    def token(self, *parts: Hashable) -> None:
        pass

    def constant(self, value: int) -> Expr:
        return add(mul(self.number, idx(next(self.steps))), idx(value))

    def load(self, tensor: Tensor, index: tuple[Expr, ...]) -> Expr:
        source, table = next(self.sources)
        return Load(source, (self.number, *index) if table else index)

    def use(self, tensor: Tensor) -> Tensor:
        raise AssertionError(f"{tensor.name}: an expression only has Loads")

    def define(self, tensor: Tensor) -> Tensor:
        raise AssertionError(f"{tensor.name}: an expression defines nothing")


def _remainders(e: Expr, terms: Terms, start: int, length: int) -> Expr:
    """c*x - c*length*((x - start) // length) as c*((x - start) % length + start), where x = sum(terms)."""
    x = total(terms, idx(0))
    offset = sub(x, idx(start))
    quotient = binary("floordiv", offset, idx(length))
    remainder = binary("mod", offset, idx(length))

    def go(node: Expr) -> Expr:
        new = rebuild(node, go)
        if new.dtype is not DType.I64 or not isinstance(new, Binary):
            return new
        parts, constant = linear(new)
        known = {atom: c for c, atom in parts}
        if length == 1 or quotient not in known or len(terms) != 1:
            return total(parts, idx(constant)) if length == 1 else new
        factor, atom = terms[0]
        c, uneven = divmod(known.get(atom, 0), factor)
        if uneven or c == 0 or known[quotient] != -c * length:
            return new
        rest = tuple((k, a) for k, a in parts if a not in (quotient, atom))
        return total(((c, remainder), *rest), idx(constant + c * start))

    return go(e)
