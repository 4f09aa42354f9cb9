"""Which Computes are a matrix of weights times a few vectors."""

import math
from collections.abc import Set
from dataclasses import dataclass

from monotile.analysis.contraction import contraction, factors
from monotile.analysis.streaming import FEW
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, axes_of, loads
from monotile.ir.program import Compute
from monotile.plan.nodes import Dim

TYPES = (DType.F16, DType.BF16, DType.F32)


@dataclass(frozen=True, slots=True)
class Problem:
    """out[m, n] = sum over `along` of vectors[m, along] * matrix[n, along].

    matrix: a Load whose last index is `along`. vectors: the other factor, as the body has it. second: whether the matrix is the second one.
    m, n: positions in the Compute's axes; axes of extent 1 that neither factor has are among n.
    """

    matrix: Load
    vectors: Expr
    along: Axis
    m: tuple[int, ...]
    n: tuple[int, ...]
    second: bool

    @property
    def row_bytes(self) -> int:
        return self.along.extent * self.matrix.dtype.itemsize

    def walks_vectors(self, d: Dim) -> bool:
        """Whether a dim of the step walks vectors, not rows of the matrix."""
        return bool(d.axes) and set(d.axes) <= set(self.m)


def problem(c: Compute, weights: Set[str]) -> Problem | None:
    """`c` as such a product, or None. weights: that may be the matrix."""
    if contraction(c) is None or len(c.reduce) != 1 or c.body.dtype is not DType.F32:
        return None
    for second in (True, False):
        found = stored(c, second)
        if found is not None and found.matrix.tensor.name in weights:
            return found
    return None


def stored(c: Compute, second: bool) -> Problem | None:
    """The same where it is known which factor is the matrix; None if it cannot be one."""
    assert isinstance(c.body, Binary)
    matrix, (along,) = factors(c)[int(second)], c.reduce
    vectors = c.body.a if second else c.body.b
    if not isinstance(matrix, Load) or matrix.dtype not in TYPES or not matrix.index:
        return None
    *before, last = matrix.index
    if last != along or any(along in axes_of(i) for i in before):
        return None
    if any(loads(i) for i in before) or along not in axes_of(vectors):
        return None
    if any(x.tensor == matrix.tensor for x in loads(vectors)):
        return None
    rows, others = axes_of(matrix), axes_of(vectors)
    both = [a for a in c.axes if a in rows and a in others and a.extent > 1]
    m = tuple(p for p, a in enumerate(c.axes) if a in others and a not in rows and a.extent > 1)
    n = tuple(p for p in range(len(c.axes)) if p not in m)
    idle = any(c.axes[p] not in rows and c.axes[p].extent > 1 for p in n)
    count = math.prod(c.axes[p].extent for p in m)
    if both or idle or not 1 <= count <= FEW:
        return None
    return Problem(matrix, vectors, along, m, n, second)
