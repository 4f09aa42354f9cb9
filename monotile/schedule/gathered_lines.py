"""Transposed copies of product operands that are contiguous along k and gathered along k by indices from data: after one copy in the
other order, each index reads a whole line, which is copied on chip in vectors."""

import msgspec

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.contraction import contraction, factors
from monotile.ir.expr import Load, Tensor, axes_of, loads, map_loads
from monotile.ir.program import Compute, Program, Statement, compute
from monotile.kernels.draft import Context
from monotile.kernels.registry import tiled
from monotile.targets.target import Target
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body

LEAST = 64  # rows of an operand that justify a line


def copy_lines(program: Program, target: Target, context: Context) -> Program:
    """`program` with copies of such operands in front of their readers."""
    names = Names(program)

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            s = map_bodies(s, go)
            for y in _gathered(s, target, context):
                made, new = _copy(y, names, s.origin)
                out.append(made)
                assert isinstance(s, Compute)
                s = msgspec.structs.replace(
                    s, body=map_loads(s.body, lambda x, y=y, new=new: new if x == y else x)
                )
            out.append(s)
        return tuple(out)

    return with_body(program, go(program.body))


def _gathered(s: Statement, target: Target, context: Context) -> tuple[Load, ...]:
    """The factors of `s` from which data-dependent indices read single values along k."""
    if not isinstance(s, Compute) or len(s.reduce) != 1 or contraction(s) is None:
        return ()
    (k,) = s.reduce

    def scattered(y: Load) -> bool:
        *outer, last = y.index
        by_data = any(k in axes_of(x) for x in loads(last))
        free = not any(loads(i) or k in axes_of(i) for i in outer)
        vector = target.vector_bytes // y.dtype.itemsize
        short = contiguous_run(offset(y), k, vector) < vector
        return by_data and free and short and y.tensor.size >= LEAST * y.tensor.shape[-1]

    found = tuple(y for y in factors(s) if isinstance(y, Load) and scattered(y))
    return found if found and tiled(s, context) else ()


def _copy(y: Load, names: Names, origin: str) -> tuple[Compute, Load]:
    *outer, depth = y.tensor.shape
    out = Tensor(names.fresh("lines"), (depth, *outer), y.tensor.dtype)
    made = compute(out, lambda n, *i: Load(y.tensor, (*i, n)), origin=origin)
    return made, Load(out, (y.index[-1], *y.index[:-1]))
