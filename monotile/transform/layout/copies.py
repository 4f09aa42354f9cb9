"""Weights to be copied in another order first, because their readers would load single elements."""

import math
from collections.abc import Container, Iterator, Mapping

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.contraction import contraction
from monotile.analysis.masked import masked
from monotile.analysis.windows import Window
from monotile.ir.expr import Load, axes_of, loads
from monotile.ir.program import Compute, Program, statements
from monotile.targets.target import Target

MOST_BEHIND = 27  # elements per vector up to which a thread that transposes holds them all (`kernels/transpose`): a cube of three
ROWS = 64  # of a product that are worth a copy of the weight
Scattered = tuple[str, Load, int]  # statement, load, the dimension to come last


def long_kernels(program: Program, windows: Mapping[str, Window]) -> Iterator[Scattered]:
    """Tensors that long computed kernels (normalised ones) read across more elements than a thread of a transposition holds: a copy goes
    through tiles, a computed value does not."""
    weights = {w.tensor.name for w in program.weights}
    kernels = {w.kernel.tensor.name: w.depth for w in windows.values() if w.kernel is not None}
    for s in statements(program.body):
        depth = kernels.get(s.out.name) if isinstance(s, Compute) else None
        if depth is None or not isinstance(s, Compute) or s.combiner is not None:
            continue
        channel = s.axes[depth]
        read = [x for x in loads(s.body) if channel in axes_of(x)]
        at = {x: x.index.index(channel) for x in read if channel in x.index}
        if len(at) < len({*read}) or not {x.tensor.name for x in read} <= weights:
            continue
        if math.prod(s.out.shape[depth + 1 :]) > MOST_BEHIND:
            yield from ((s.out.name, x, d) for x, d in at.items())


def scattered_weights(
    program: Program, windows: Container[str], target: Target
) -> Iterator[Scattered]:
    """Weights that products of many rows read as single elements, along the sum as well as along columns; not products of windows."""
    weights = {w.tensor.name for w in program.weights}
    for s in statements(program.body):
        found = contraction(s) if isinstance(s, Compute) and s.out.name not in windows else None
        if found is None or not isinstance(s, Compute):
            continue
        for side, own, other in ((found.left, found.m, found.n), (found.right, found.n, found.m)):
            read = masked(side)
            rows = math.prod(s.axes[p].extent for p in other)
            if read is None or rows < ROWS or not own:
                continue
            x = read.load
            along = (*(s.reduce[p] for p in found.k), s.axes[own[-1]])
            vector = target.vector_bytes // x.dtype.itemsize
            dims = [d for d, i in enumerate(x.index) if i in s.reduce and i.extent % vector == 0]
            short = all(contiguous_run(offset(x), a, vector) < vector for a in along)
            if dims and short and x.tensor.name in weights:
                yield s.out.name, x, max(dims, key=lambda d: x.tensor.shape[d])
