"""Products whose right operand is 2:4 sparse along k, as sparse tensor cores take it."""

from monotile.analysis.contraction import Contraction
from monotile.analysis.two_of_four import two_of_four
from monotile.ir.dtype import DType
from monotile.ir.program import Compute
from monotile.targets.target import Target

SPARSE_VECTOR = 8  # elements that one copy of a value moves
SPARSE_CHUNK = 64  # values of k: a chunk has so many, or twice these


def takes_sparse(found: Contraction, c: Compute, target: Target) -> bool:
    """Whether the target multiplies the right operand in its stored form: 16-bit floats, in whole chunks along all of k."""
    (k, *others) = c.reduce
    halves = found.left.dtype is found.right.dtype and found.right.dtype in (DType.F16, DType.BF16)
    whole = not others and k.extent % SPARSE_CHUNK == 0 and c.live_along(k) is None
    fits = "wgmma.sp" in target.instructions and halves and whole
    return fits and two_of_four(found.right, k) is not None


def one_row(found: Contraction, c: Compute) -> tuple[int, ...]:
    """The rows of a product without rows: an axis of the batch that has one value, if there is one."""
    return tuple(p for p in found.batch if c.axes[p].extent == 1)[:1]
