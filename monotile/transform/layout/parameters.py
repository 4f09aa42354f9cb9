"""In which order parameters should lie in memory: along what products sum over, as the tensors do that a kernel makes itself (`layouts.py`).

A matrix that is read along its columns comes in as pieces of whole lines, so its tiles have 64 columns or a multiple, which few products
share out evenly; read along the sum a tile has as many columns as suit them. And a convolution's weights are turned in every call
unless their channels lie last already. An order is changed where all readers of a parameter want the same other one.
"""

from collections import Counter
from collections.abc import Container, Iterator

import msgspec

from monotile.analysis.contraction import contraction
from monotile.analysis.uses import Uses
from monotile.ir.expr import Axis, Load, axes_of, loads
from monotile.ir.program import Compute, Program, Scatter, Statement, Weight, statements, value_of
from monotile.targets.target import Target
from monotile.transform.layout.align_axes import Order, permuted, rearranged
from monotile.transform.layout.channels_last import lay_out
from monotile.transform.layout.pad_channels import pad_channels
from monotile.transform.rewrite import map_program

FEWEST = 8  # terms of a sum that are worth to lie side by side


def arrange(
    program: Program, target: Target, movable: Container[str]
) -> tuple[Program, dict[str, Order]]:
    """`program` with weights in such orders, and these orders, by part: dimension k is `order[k]` of what it was. Nothing on the
    CPU, where operands are turned into panels.

    movable: parts that the caller holds, and no call updates.
    """
    places, whole = Counter(p for w in program.weights for p in w.parts), Uses(program).whole
    weights = {
        w.tensor.name: w
        for w in program.weights
        if all(p in movable and places[p] == 1 for p in w.parts) and w.tensor.name not in whole
    }
    wanted = _wanted(program, target, weights) if target.has.layouts else {}
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
    """The order that all readers want of a weight, where it is another one than it has."""
    found: dict[str, set[Order]] = {}
    for s in statements(lay_out(pad_channels(program, target), target).body):
        for x in _loads(s):
            if x.tensor.name in weights:
                order = _copied(s, x) or _summed(s, x) or tuple(range(len(x.index)))
                found.setdefault(x.tensor.name, set()).add(order)
    alike = {n: order for n, orders in found.items() for order in orders if len(orders) == 1}
    return {n: order for n, order in alike.items() if _another(order, weights[n])}


def _another(order: Order, w: Weight) -> bool:
    """Whether each part of the weight lies otherwise in this order."""
    long = [d for d in order if w.tensor.shape[d] > 1]
    tabled = order[: w.table] == tuple(range(w.table))
    return tabled and long != sorted(long)


def _loads(s: Statement) -> Iterator[Load]:
    if isinstance(s, Compute | Scatter):
        yield from loads(value_of(s))
        if isinstance(s, Scatter):
            yield from (x for i in s.index for x in loads(i))


def _copied(s: Statement, x: Load) -> Order | None:
    """That of a copy which is nothing else."""
    if not isinstance(s, Compute) or s.body != x or {*x.index} != {*s.axes}:
        return None
    order = tuple(x.index.index(a) for a in s.axes)
    return order if s.out.shape == tuple(x.tensor.shape[d] for d in order) else None


def _summed(s: Statement, x: Load) -> Order | None:
    """What a product with tensor cores sums over last, where it lies elsewhere."""
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
