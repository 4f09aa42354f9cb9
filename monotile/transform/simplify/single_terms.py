"""Replaces a sum of which a comparison selects one term by that term: the product with a one-hot matrix becomes a gather.

    y[i, n] = sum over k < K of float(at[i] == k) * w[k, n]
            = where(0 <= at[i] < K, w[at[i], n], 0)

As elsewhere, 0 times a skipped value counts as 0 (`analysis/dead.py`).
"""

from collections.abc import Mapping
from itertools import islice

import msgspec

from monotile.analysis.chosen import chosen, opened
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Binary,
    Select,
    cast,
    const,
    idx,
    substitute,
    walk,
)
from monotile.ir.program import Compute, Program, statements
from monotile.transform.simplify.simplify import simplify_compute

LARGEST = 64  # nodes of the expression of a matrix

Matrices = Mapping[str, Compute]


def compared(program: Program) -> Matrices:
    """Element-wise Computes of comparisons of numbers, by name: one-hot matrices among others."""
    found: dict[str, Compute] = {}
    for s in statements(program.body):
        if not isinstance(s, Compute) or s.combiner is not None:
            continue
        body = opened(s.body, found)
        nodes = list(islice(walk(body), LARGEST + 1))
        compares = any(isinstance(e, Binary) and e.op == "eq" and e.a.dtype.is_int for e in nodes)
        if compares and len(nodes) <= LARGEST:
            found[s.out.name] = msgspec.structs.replace(s, body=body)
    return found


def single_term(s: Compute, matrices: Matrices) -> Compute:
    """`s` without the reduction axes of which one point is selected; `s` itself if there are none."""
    if s.combiner != "sum":
        return s
    for k, at, value in chosen(opened(s.body, matrices), s.reduce):
        if s.live_along(k) is not None:
            continue
        place = cast(at, DType.I64)
        inside = Binary("and", Binary("ge", place, idx(0)), Binary("lt", place, idx(k.extent)))
        term = substitute(value, {k.name: place})
        body = Select(inside, term, const(0, term.dtype))
        reduce = tuple(a for a in s.reduce if a != k)
        left = msgspec.structs.replace(s, reduce=reduce, body=body)
        if not reduce:
            left = msgspec.structs.replace(left, combiner=None, body=cast(body, s.out.dtype))
        return single_term(simplify_compute(left), matrices)
    return s
