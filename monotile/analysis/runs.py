"""Products whose right operand may be a copy in panels and whose left operand is read in contiguous runs: zero-padded windows of a
channels-last image."""

from collections.abc import Container, Sequence

from monotile.analysis.affine import Affine, offset
from monotile.analysis.contraction import Contraction
from monotile.analysis.masked import masked
from monotile.analysis.unconditional import TRUE
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, axes_of, loads
from monotile.ir.program import Compute

LONGEST = 64  # values of k of a chunk that all tiles can take
LEAST = 16  # values of a run: looking up where one begins takes as long as multiplying a few


def in_panels(factor: Expr, element: DType, copied: Container[str]) -> bool:
    """Whether a right operand of such elements may be read from a copy of the weight: all of it, in its own index order."""
    if not isinstance(factor, Load) or factor.tensor.name not in copied:
        return False
    straight = all(isinstance(atom, Axis) for atom, _ in offset(factor).terms)
    return straight and factor.dtype is element


def order_of_left(c: Compute, found: Contraction) -> tuple[int, ...]:
    """The reduce axes in the memory order of the left operand, a masked load: largest stride first; none where it is something else."""
    x = masked(found.left)
    if x is None:
        return ()
    where = offset(x.load)
    return tuple(sorted(found.k, key=lambda p: -where.coefficient(c.reduce[p])))


def run_of(factor: Expr, k: Sequence[Axis]) -> int:
    """How many values of the row-major axes `k` are contiguous in the masked load of `factor`, under one condition; 0 where they are
    few."""
    x = masked(factor)
    if x is None or x.cond == TRUE or any(loads(i) for i in x.load.index):
        return 0
    where, fixed, run = offset(x.load), axes_of(x.cond), 1
    others = Affine(tuple(t for t in where.terms if not isinstance(t[0], Axis)))
    for a in reversed(k):
        if a in fixed or others.mentions(a) or where.coefficient(a) != run:
            break
        run *= a.extent
    return run if run >= LEAST else 0


def read_in_runs(c: Compute, found: Contraction, copied: Container[str]) -> int:
    """The length of the runs in which the product reads its left operand in place, by a table of each row's run addresses; 0 where it
    does not. copied: weights of which there may be copies in panels."""
    plain = found.left.dtype is c.body.dtype and not c.live and not found.grains
    if not plain or not in_panels(found.right, c.body.dtype, copied):
        return 0
    run = run_of(found.left, [c.reduce[p] for p in order_of_left(c, found)])
    return run if run and whole_runs(run, LONGEST) >= LEAST else 0


def whole_runs(run: int, most: int) -> int:
    """The largest chunk of k, of at most `most` values, that has whole runs, or divides one."""
    return next(d for d in range(most, 0, -1) if d % run == 0 or run % d == 0)
