"""A product as one of several steps of a task."""

import math

from monotile.choice.digest import digest
from monotile.ir.program import Compute
from monotile.kernels.common.product import Product, product_of, with_sides
from monotile.kernels.draft import Context
from monotile.kernels.family import RowSite
from monotile.kernels.matmul.blocks import cut_key, ranked
from monotile.kernels.matmul.cuts import last_dims, value_of
from monotile.kernels.matmul.problem import Size
from monotile.plan.nodes import Dim, Step


def in_rows(site: RowSite, context: Context) -> tuple[Step, float] | None:
    """A product inside a group: rows cut to one element are batches; a side is one cut axis, or whole ones."""
    anchor, where = site.anchor, site.where
    p = product_of(anchor, context, site.own) if isinstance(anchor, Compute) else None
    if p is None or p.grain_m or p.grain_n or not isinstance(anchor, Compute):
        return None  # rows might be cut inside a run
    single = {q for q in (*p.m, *p.n) if q in where and site.tiles[where[q]] == 1}
    m = tuple(q for q in p.m if q not in single)
    n = tuple(q for q in p.n if q not in single)
    batch = tuple(q for q in range(len(anchor.axes)) if q not in m and q not in n)
    if any(q in where and site.tiles[where[q]] != 1 for q in batch):
        return None
    for side in (m, n):
        if not side or (len(side) > 1 and any(q in where for q in side)):
            return None
    p = _with_sides(p, anchor, (m, n), context, site.own)
    extents = site.extents
    size_m, size_n = (math.prod(extents[anchor.axes[q].name] for q in side) for side in (m, n))
    size = Size(size_m, size_n, math.prod(anchor.reduce[q].extent for q in p.k))
    walked = math.prod(extents[anchor.axes[q].name] for q in batch)
    fitting = (
        way
        for way in ranked(p, size, context)
        if way[2] <= site.room
        and way[1].instruction != "wgmma"  # its panels need the first bytes
        and way[1].teams == 1  # which alternate between tasks of a stage
    )
    best = context.choose(
        "blocks within rows",
        fitting,
        shape=lambda: digest(cut_key(p, size), site.room),
        cost=lambda way: way[0],
        value=lambda way: value_of(way[1]),
        ranked=True,
    )
    if best is None:
        return None
    dims = [
        Dim((q,), anchor.axes[q].extent, 1 if q in where else anchor.axes[q].extent, where.get(q))
        for q in batch
    ]
    for side, tile in ((m, size_m), (n, size_n)):
        extent = math.prod(anchor.axes[q].extent for q in side)
        dims.append(Dim(side, extent, tile, where.get(side[0])))
    method = last_dims(best[1], tuple(dims), p)
    return Step(site.names, tuple(dims), method, scratch_bytes=best[2]), walked * best[0]


def _with_sides(
    p: Product,
    c: Compute,
    sides: tuple[tuple[int, ...], tuple[int, ...]],
    context: Context,
    own: frozenset[str],
) -> Product:
    """`with_sides`, memoised for each choice of axes. own: as in the site for which `p` was found."""
    key = ("product", c, own, sides)
    return context.of_worker.once(key, lambda: with_sides(p, c, sides, context.target, own))
