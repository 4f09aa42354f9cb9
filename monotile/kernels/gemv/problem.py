"""Recognises Computes that multiply a weight matrix with a few vectors."""

import math
from collections.abc import Set
from dataclasses import dataclass

from monotile.analysis.contraction import contraction, factors, uncast
from monotile.analysis.encoding import Encoded, encoded
from monotile.analysis.streaming import FEW, MANY, across
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, axes_of, loads
from monotile.ir.program import Compute
from monotile.kernels.common.product import HALVES
from monotile.plan.nodes import Dim

TYPES = (DType.F16, DType.BF16, DType.F32)


@dataclass(frozen=True, slots=True)
class Problem:
    """out[m, n] = sum over `along` of vectors[m, along] * factor[n, along].

    matrix: the streamed part of the factor, a Load whose last index is `along`, or a quotient of it (words of codes). across: the sum goes
    across the rows in memory, and the last index is n. codes: their decoding; None if the factor is the matrix itself. vectors: the other
    factor, as the body has it. second: whether the matrix is the second factor. m, n: positions in the Compute's axes; axes of extent 1
    that neither factor has are among n. apart: those of n that the vectors have too, as those of experts, or that say which table decodes:
    a task has one position of them. wide: those of n with more than one position.
    """

    matrix: Load
    factor: Expr
    codes: Encoded | None
    vectors: Expr
    along: Axis
    m: tuple[int, ...]
    n: tuple[int, ...]
    apart: tuple[int, ...]
    wide: tuple[int, ...]
    second: bool
    across: bool

    @property
    def looked_up(self) -> bool:
        """Whether rows are where other tensors say, as an expert's: they can be loaded only once those are computed."""
        return any(loads(i) for i in self.matrix.index)

    @property
    def per(self) -> int:
        """Elements of a word."""
        return self.codes.per if self.codes else 1

    @property
    def row_bytes(self) -> int:
        return self.along.extent // self.per * self.matrix.dtype.itemsize

    def walks_vectors(self, d: Dim) -> bool:
        """Whether a dim of the step is over vectors, not over rows of the matrix."""
        return bool(d.axes) and set(d.axes) <= set(self.m)


def problem(c: Compute, weights: Set[str]) -> Problem | None:
    """`c` as such a product, or None. weights: the tensors that may be the matrix. Not one of whole rows that are looked up, unless they are
    codes: reductions load them as fast, while the supplier goes on with the weights behind them."""
    if contraction(c) is None or len(c.reduce) != 1 or c.body.dtype is not DType.F32:
        return None
    for second in (True, False):
        found = stored(c, second)
        if found is not None and found.matrix.tensor.name in weights:
            whole = found.codes is None and not found.across
            return None if whole and found.looked_up else found
    return None


def stored(c: Compute, second: bool) -> Problem | None:
    """The same with the factor that is the matrix given; None if it cannot be one."""
    assert isinstance(c.body, Binary)
    factor, (along,) = factors(c)[int(second)], c.reduce
    vectors = c.body.a if second else c.body.b
    codes = encoded(factor, along)
    matrix = factor if codes is None else codes.words
    if not isinstance(matrix, Load) or not matrix.index or not _readable(factor, codes, vectors):
        return None
    *before, last = matrix.index
    crossed = codes is None and last != along
    if crossed and not across(matrix, along, c.axes):
        return None
    if not crossed and any(along in axes_of(i) for i in before):
        return None
    if along not in axes_of(vectors):
        return None
    if any(x.tensor == matrix.tensor for x in loads(vectors)):
        return None
    rows, others = axes_of(factor), axes_of(vectors)
    tables = {a for x in (codes.tables if codes else ()) for i in x.index[:-1] for a in axes_of(i)}
    own = others | tables
    apart = tuple(p for p, a in enumerate(c.axes) if a in rows and a in own and a.extent > 1)
    m = tuple(p for p, a in enumerate(c.axes) if a in others and a not in rows and a.extent > 1)
    n = tuple(p for p in range(len(c.axes)) if p not in m)
    idle = any(c.axes[p] not in rows and c.axes[p].extent > 1 for p in n)
    count = math.prod(c.axes[p].extent for p in m)
    if idle or not 1 <= count <= (MANY if codes else FEW):
        return None
    wide = tuple(p for p in n if c.axes[p].extent > 1)
    return Problem(matrix, factor, codes, vectors, along, m, n, apart, wide, second, crossed)


def _readable(factor: Expr, codes: Encoded | None, vectors: Expr) -> bool:
    """Whether threads can read the factor: as it is, or decoded to the type in which tensor cores multiply it with the vectors."""
    if codes is None:
        return factor.dtype in TYPES
    return factor.dtype in HALVES and uncast(vectors).dtype is factor.dtype
