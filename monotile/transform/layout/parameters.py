"""Layouts of parameters for `Options(arrange_parameters=True)`: the summed dimension last, as `channels_last.py` does for intermediate
tensors.

A matrix that is contiguous along its columns is copied in pieces of whole lines, so its tiles have a multiple of 64 columns, which
rarely divides the work evenly. If it is contiguous along the sum, a tile may have any number of columns. And a convolution's weights are
transposed in every call unless they are channels-last. A layout changes if all readers of a parameter want the same other one.
"""

from collections import Counter
from collections.abc import Iterator, Set

import msgspec

from monotile.analysis.contraction import contraction
from monotile.analysis.uses import Uses
from monotile.ir.expr import Axis, Load, axes_of, loads
from monotile.ir.program import Compute, Program, Scatter, Statement, Weight, statements, value_of
from monotile.targets.target import Target
from monotile.transform.layout.align_axes import Order, permuted, rearranged
from monotile.transform.layout.channels_last import assign_layouts
from monotile.transform.layout.pad_channels import pad_channels
from monotile.transform.rewrite import map_program

FEWEST = 8  # minimum length of a sum for which its terms should be contiguous


def arrange(
    program: Program, target: Target, movable: Set[str]
) -> tuple[Program, dict[str, Order]]:
    """`program` with weights in such layouts, and the orders by part: dimension k was dimension `order[k]`. Where operands are packed into
    panels, as on the CPU, weights keep their layout, and may be copied.

    movable: parts that the caller holds and that no call updates.
    """
    if target.has.register_tiles:
        copied = (msgspec.structs.replace(w, copied={*w.parts} <= movable) for w in program.weights)
        return msgspec.structs.replace(program, weights=tuple(copied)), {}
    places, whole = Counter(p for w in program.weights for p in w.parts), Uses(program).whole
    weights = {
        w.tensor.name: w
        for w in program.weights
        if all(p in movable and places[p] == 1 for p in w.parts) and w.tensor.name not in whole
    }
    wanted = _wanted(program, target, weights) if target.has.wide_copies else {}
    if not wanted:
        return program, {}
    found = {n: permuted(weights[n].tensor, order, n) for n, order in wanted.items()}
    program = map_program(program, lambda s: rearranged(s, found))
    now = (
        msgspec.structs.replace(w, tensor=found[w.tensor.name].out) if w.tensor.name in found else w
        for w in program.weights
    )
    parts = {
        part: tuple(d - w.table for d in order[w.table :])
        for n, order in wanted.items()
        for w in (weights[n],)
        for part in w.parts
    }
    return msgspec.structs.replace(program, weights=tuple(now)), parts


def _wanted(program: Program, target: Target, weights: dict[str, Weight]) -> dict[str, Order]:
    """The order that all readers of a weight want, if it differs from the present one."""
    found: dict[str, set[Order]] = {}
    for s in statements(assign_layouts(pad_channels(program, target), target).body):
        for x in _loads(s):
            if x.tensor.name in weights:
                order = _copied(s, x) or _summed(s, x) or tuple(range(len(x.index)))
                found.setdefault(x.tensor.name, set()).add(order)
    alike = {n: order for n, orders in found.items() for order in orders if len(orders) == 1}
    return {n: order for n, order in alike.items() if _another(order, weights[n])}


def _another(order: Order, w: Weight) -> bool:
    """Whether this order changes the layout of each part of the weight."""
    long = [d for d in order if w.tensor.shape[d] > 1]
    tabled = order[: w.table] == tuple(range(w.table))
    return tabled and long != sorted(long)


def _loads(s: Statement) -> Iterator[Load]:
    if isinstance(s, Compute | Scatter):
        yield from loads(value_of(s))
        if isinstance(s, Scatter):
            yield from (x for i in s.index for x in loads(i))


def _copied(s: Statement, x: Load) -> Order | None:
    """The order of a statement that is only a transposed copy."""
    if not isinstance(s, Compute) or s.body != x or {*x.index} != {*s.axes}:
        return None
    order = tuple(x.index.index(a) for a in s.axes)
    return order if s.out.shape == tuple(x.tensor.shape[d] for d in order) else None


def _summed(s: Statement, x: Load) -> Order | None:
    """The order with the summed dimension of a tensor-core product last, if it is not."""
    product = contraction(s) if isinstance(s, Compute) else None
    if product is None or x not in (product.left, product.right) or x.dtype.itemsize != 2:
        return None
    assert isinstance(s, Compute)
    summed = {*s.reduce}
    if axes_of(x.index[-1]) & summed:
        return None
    along = [d for d, i in enumerate(x.index) if isinstance(i, Axis) and i in summed]
    if not along or x.tensor.shape[along[-1]] < FEWEST:
        return None
    return (*(d for d in range(len(x.index)) if d != along[-1]), along[-1])
