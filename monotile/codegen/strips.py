"""Selections between columns of one matrix (`schedule/strips.py`), as one load from it."""

import functools
from collections.abc import Mapping, Sequence, Set

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.guarded import Holds, guarded, is_choice
from monotile.analysis.index_ranges import tightest
from monotile.analysis.unconditional import both, negated
from monotile.codegen.address import readable
from monotile.ir.expr import Const, Expr, Load, Select, add, idx, rebuild
from monotile.ir.program import Compute, Program, Scatter, statements
from monotile.plan.nodes import Body
from monotile.plan.places import Place, Strip
from monotile.plan.walk import stages_in

Places = Mapping[str, tuple[Place, ...]]


def as_read(program: Program, places: Places, body: Body) -> dict[str, Compute | Scatter]:
    """All statements by the name of their result, as the stages of `body` read."""
    found = (s for s in statements(program.body) if isinstance(s, (Compute, Scatter)))
    out = {s.out.name: s for s in found}
    if any(isinstance(p, Strip) for found in places.values() for p in found):
        for stage in stages_in(body):
            own = {name for step in stage.steps for name in step.computes}
            out |= {n: in_one_load(out[n], places, own) for n in own}
    return out


def in_one_load(s: Compute | Scatter, places: Places, own: Set[str]) -> Compute | Scatter:
    """`s` with each selection between columns at one common address replaced by one load. own: the tensors that the stage computes
    itself."""

    def go(e: Expr) -> Expr:
        found = _joined(e, places, own) if isinstance(e, Select) and is_choice(e) else None
        return rebuild(e, go) if found is None else found

    if not isinstance(s, Compute):
        return s
    body = go(s.body)
    return s if body == s.body else msgspec.structs.replace(s, body=body)


def _joined(e: Select, places: Places, own: Set[str]) -> Expr | None:
    """The selection `e` with its loads from one matrix joined; None if there are no two."""
    matrix: list[tuple[Load, Strip]] = []
    others: list[tuple[Expr, tuple[Holds, ...]]] = []
    for x, when in guarded(e.cond, (e.then, e.otherwise)):
        if isinstance(x, Load | Const):
            p = _strip(x, places) if isinstance(x, Load) and x.tensor.name not in own else None
            if isinstance(x, Load) and p is not None and _same(x, p, matrix):
                matrix.append((x, p))
            else:
                others.append((x, when))
    if len(matrix) < 2:
        return None
    joined: Expr = _load(matrix)
    for x, when in others:
        terms = tightest(c if holds else negated(c) for c, holds in when)
        joined = Select(functools.reduce(both, terms), x, joined)
    return joined


def _strip(x: Load, places: Places) -> Strip | None:
    p = readable(places[x.tensor.name], own=False)
    return p if isinstance(p, Strip) else None


def _same(x: Load, p: Strip, matrix: Sequence[tuple[Load, Strip]]) -> bool:
    """Whether `x` has the same row and column as the loads of `matrix`, in whatever place."""
    if not matrix:
        return True
    y, q = matrix[0]
    return (p.offset, p.pitch, p.size) == (q.offset, q.pitch, q.size) and _at(x, p) == _at(y, q)


def _at(x: Load, p: Strip) -> tuple[Expr, ...]:
    """Row and column in the matrix."""
    *rows, last = x.index
    return tuple(affine(i).expr for i in (*rows, add(last, idx(p.first))))


def _load(matrix: Sequence[tuple[Load, Strip]]) -> Load:
    """The load that equals all of them."""
    x, p = min(matrix, key=lambda pair: pair[1].first)
    width = max(q.first + q.width for _, q in matrix) - p.first
    whole = msgspec.structs.replace(x.tensor, shape=(*x.tensor.shape[:-1], width))
    *rows, column = _at(x, p)
    return Load(whole, (*rows, affine(add(column, idx(-p.first))).expr))
