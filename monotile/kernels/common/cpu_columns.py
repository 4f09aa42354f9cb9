"""What follows a product and is the same for a whole column, on the CPU: computed once for a rectangle of sums, not once a row.

A normalisation's scale is `rsqrt(variance + epsilon)` of a channel: with channels along the columns each row would take the root again. And each
would convert what is stored in 16 bits.
"""

from dataclasses import replace

import msgspec

from monotile.analysis.cost import cost
from monotile.codegen.site import Site
from monotile.ir.expr import Axis, Expr, Load, Tensor, axes_of, loads, rebuild
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.product import HALVES

COSTLY = 4.0  # additions, from which on a value of a column is kept: as of a root or a division


def of_columns(site: Site, columns: frozenset[Axis]) -> tuple[Site, tuple[Compute, ...]]:
    """`site` with what follows its product reading costly values of a column, and these: tensors that nothing places, held while rows are
    finished. columns: the axes that a column is a value of."""
    if isinstance(site.anchor, Scatter):
        return site, ()
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
    return replace(site, followers=followers), tuple(held.values())


def _costly(e: Expr, own: set[Axis], made: set[str]) -> bool:
    read = loads(e)
    steady = bool(read) and not axes_of(e) & own and not made & {x.tensor.name for x in read}
    known = not any(loads(i) for x in read for i in x.index)
    dear = e.dtype in HALVES if isinstance(e, Load) else cost(e) > COSTLY
    return steady and known and e.dtype.is_float and dear
