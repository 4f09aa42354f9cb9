"""Finds products with operands whose rows are not whole vectors, and the padded row lengths."""

from collections.abc import Sequence

import msgspec

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.contraction import contraction
from monotile.analysis.masked import masked
from monotile.ir.expr import Axis, Load, Tensor, axes_of
from monotile.ir.program import Compute, Program
from monotile.targets.target import Target
from monotile.transform.layout.intermediates import tied

SECTOR = 32  # the minimum of a memory transaction; long rows are a multiple
LONG = 512  # bytes of these


class Rows(msgspec.Struct, frozen=True):
    """`tensor` with the summed dimension last and of so many elements."""

    tensor: Tensor
    dim: int
    extent: int

    @property
    def is_last(self) -> bool:
        """Whether the dimension is already last."""
        return self.dim == len(self.tensor.shape) - 1


class OddProduct(msgspec.Struct, frozen=True):
    """The Compute called `name`, which sums over `axis`, to be padded to `extent`. odd: the operands to be padded, with their new rows."""

    name: str
    axis: Axis
    extent: int
    odd: tuple[tuple[Load, Rows], ...]

    @property
    def rows(self) -> dict[Load, Rows]:
        return dict(self.odd)


def odd_product(s: Compute, target: Target) -> OddProduct | None:
    """`s` as a product with an operand that cannot be read in whole vectors, but could be with longer rows."""
    found = contraction(s)
    if found is None or len(s.reduce) != 1 or s.live or not found.m or not found.n:
        return None
    (k,) = s.reduce
    depths: dict[Load, int] = {}
    for factor in (found.left, found.right):
        x = masked(factor)
        if x is None or k in axes_of(x.cond) or (d := _depth(x.load, k)) is None:
            return None
        depths[x.load] = d
    narrow = [x for x in depths if not _in_vectors(x, s, target)]
    size = min((x.dtype.itemsize for x in narrow), default=1)
    unit, nbytes = target.vector_bytes, k.extent * size
    if nbytes % unit and nbytes >= LONG:
        unit = SECTOR
    extent = -(-nbytes // unit) * unit // size
    odd = tuple((x, Rows(x.tensor, depths[x], extent)) for x in narrow)
    return OddProduct(s.out.name, k, extent, odd) if odd else None


def _depth(x: Load, k: Axis) -> int | None:
    """The dimension of `x` that is indexed by k alone, if there is one."""
    found = [d for d, i in enumerate(x.index) if k in axes_of(i)]
    return (
        found[0]
        if len(found) == 1 and x.index[found[0]] == k and x.tensor.shape[found[0]] == k.extent
        else None
    )


def _in_vectors(x: Load, s: Compute, target: Target) -> bool:
    """Whether neighbours along the sum, or along a side, are whole vectors."""
    lanes = target.vector_bytes // x.dtype.itemsize
    axes = (*s.reduce, *(s.axes if x.dtype.itemsize > 1 else ()))
    return any(contiguous_run(offset(x), a, lanes) == lanes for a in axes)


def components(program: Program, odd: Sequence[OddProduct]) -> list[list[OddProduct]]:
    """`odd` in groups that share no tensor, nor tensors with equal layouts."""
    ties = ties_of(program)
    out: list[tuple[set[str], list[OddProduct]]] = []
    for p in odd:
        names = {n for rows in p.rows.values() for n in tied_with(rows.tensor.name, ties)}
        joined = [group for group in out if group[0] & names]
        out = [group for group in out if not group[0] & names]
        out.append((names.union(*(g[0] for g in joined)), [*(q for g in joined for q in g[1]), p]))
    return [group for _, group in out]


def ties_of(program: Program) -> list[frozenset[str]]:
    return [frozenset(t.name for t, _ in group) for group in tied(program)]


def tied_with(name: str, ties: Sequence[frozenset[str]]) -> frozenset[str]:
    """The tensors whose layouts must be equal to that of `name`."""
    found, before = frozenset((name,)), frozenset[str]()
    while found != before:
        before, found = found, found.union(*(t for t in ties if t & found))
    return found
