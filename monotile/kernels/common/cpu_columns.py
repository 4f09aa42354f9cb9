"""Values that are constant along a column, on the CPU: computed once for a rectangle of sums or elements, not once per row (loop-invariant
code motion across the loop over rows).

A normalisation's scale is `rsqrt(variance + epsilon)` of a channel: with channels along the columns each row would compute the root again.
And each row would convert values that are stored in 16 bits.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from monotile.analysis.affine import within
from monotile.analysis.cost import cost
from monotile.codegen.loops import Loops, Row
from monotile.codegen.site import Point, Site
from monotile.codegen.spelling import bare
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Tensor,
    axes_of,
    const,
    loads,
    map_loads,
    rebuild,
    substitute,
)
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.product import HALVES

MOST_HELD = 4096  # values of an array on a thread's stack
COSTLY = (
    4.0  # additions; costlier values of a column are computed once, such as a root or a division
)


def of_columns(site: Site, columns: frozenset[Axis]) -> tuple[Site, tuple[Compute, ...]]:
    """`site` with costly per-column values replaced by loads of temporary tensors, and the Computes of these tensors. columns: the axes on
    which such a value may depend."""
    if isinstance(site.anchor, Scatter):
        return site, ()
    anchor = site.anchor
    own = {a for s in (site.anchor, *site.followers) for a in s.axes} - columns
    made = {s.out.name for s in (site.anchor, *site.followers)}
    held: dict[Expr, Compute] = {}

    def keep(e: Expr) -> Expr:
        if e in held or _costly(e, own, made):
            found = held.get(e)
            if found is None:
                out = Tensor(f"of_column_{len(held)}", site.anchor.out.shape, e.dtype)
                found = held[e] = Compute(out, site.anchor.axes, (), None, e)
            return Load(found.out, site.anchor.axes)
        return rebuild(e, keep)

    followers = tuple(
        msgspec.structs.replace(s, body=keep(s.body)) if isinstance(s, Compute) else s
        for s in site.followers
    )
    if anchor.combiner is None:
        anchor = msgspec.structs.replace(anchor, body=keep(anchor.body))
    return replace(site, anchor=anchor, followers=followers), tuple(held.values())


def hold_columns(e: Loops, held: Sequence[Compute], axis: Axis, point: Point) -> None:
    """Writes the computation of these values for all of `axis` into arrays."""
    for x in held:
        e.writer.write(f"{e.values[x.out.dtype]} {x.out.name}[{axis.extent}];")
        lane = Axis("column", axis.extent)
        body = substitute(x.body, {**point, axis.name: lane})

        def write(name: str = x.out.name, lane: Axis = lane, body: Expr = body) -> None:
            e.writer.write(f"{name}[{lane.name}] = {bare(e.root(body))};")

        e.each(Row(lane, "0", str(axis.extent), lane), [body], write)


def read_columns(e: Loops, held: Sequence[Compute], column: Expr) -> None:
    """Within the current block, reads the values of `column` from these arrays."""
    for x in held:
        value = f"{x.out.name}[{bare(e.index(column))}]"
        e.writer.define(value)
        e.hold(x.out.name, value)


def _costly(e: Expr, own: set[Axis], made: set[str]) -> bool:
    read = loads(e)
    steady = bool(read) and not axes_of(e) & own and not made & {x.tensor.name for x in read}
    known = all(within(i, n) for x in read for i, n in zip(x.index, x.tensor.shape, strict=True))
    dear = e.dtype in HALVES or _gathered(e) if isinstance(e, Load) else cost(e) > COSTLY
    return steady and known and e.dtype.is_float and dear


def _gathered(x: Load) -> bool:
    """Whether neighbouring columns share an element, as the channels of a group do."""
    return any(isinstance(i, Binary) and i.op in ("floordiv", "mod") for i in x.index)


def others(e: Expr, held: Sequence[Compute]) -> Expr:
    """`e` without the loads of these values, for questions about its other loads."""
    names = {x.out.name for x in held}
    return map_loads(e, lambda x: const(0, x.dtype) if x.tensor.name in names else x)
