"""What a later map of a stage reads, asked for at the stage's beginning."""

from collections.abc import Sequence

from monotile.analysis.unconditional import TRUE, conditional, either
from monotile.codegen.base import Site
from monotile.codegen.cuda_steps import inside, placed, turn
from monotile.codegen.turns import Early
from monotile.codegen.vector import VectorEmitter, lane_of
from monotile.ir.expr import Expr, Load, idx, loads, substitute
from monotile.ir.program import Compute
from monotile.schedule.plan import Map


def known_ahead(e: VectorEmitter, bodies: Sequence[Expr]) -> dict[Load, Expr]:
    """What `bodies` read of other stages' results and of what is given, each with the condition under which they do, but for
    what is found by looking something up."""
    wanted: dict[Load, Expr] = {}
    for body in bodies:
        for x, when in conditional(body):
            if not e.computed(x.tensor) and not any(loads(i) for i in (*x.index, when)):
                known = wanted.get(x)
                wanted[x] = when if known is None else either(known, when)
    # Under which conditions a Load is read for an index is not known here.
    indices = {y for body in bodies for x in loads(body) for i in x.index for y in loads(i)}
    return {x: when for x, when in wanted.items() if when == TRUE or x not in indices}


def write_early(e: VectorEmitter, site: Site, method: Map, name: str) -> Early:
    """Loads what an element of a map reads from memory into the struct `name`."""
    own = turn(e, site, method)
    point = placed(site.point, own.element(site.ranges, lane_of(own.width)))
    bodies = [
        substitute(s.body, point) for s in (site.anchor, *site.followers) if isinstance(s, Compute)
    ]
    wanted = known_ahead(e, bodies)
    w = e.writer
    with w.open(f"auto fetch_{name} = [&](idx e)", ["e"], fence=True, tail=";"):
        names = e.held(wanted, own.width, name)
    w.write(f"decltype(fetch_{name}(0)) {name}{{}};")
    with (
        w.open(own.head, ["e"], fence=True),
        inside(e, site.ranges, own.element(site.ranges, idx(0))),
    ):
        w.write(f"{name} = fetch_{name}(e);")
    return Early(own, names)
