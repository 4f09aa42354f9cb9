"""Walks of which each output has ends of its own."""

from dataclasses import replace

import msgspec

from monotile.analysis.ends import OwnEnds
from monotile.codegen.block import BlockEmitter
from monotile.codegen.loops import Loops
from monotile.codegen.site import Point, Site
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Const, Expr
from monotile.ir.program import Compute


def within(site: Site, ends: OwnEnds) -> Site:
    """`site` with the terms as they are between the ends."""
    assert isinstance(site.anchor, Compute)
    return replace(site, anchor=msgspec.structs.replace(site.anchor, body=ends.body))


def write_ends(
    e: Loops | VectorEmitter | BlockEmitter, ends: OwnEnds, point: Point
) -> tuple[str, str]:
    """Texts of the first term of the output at `point`, and of the one behind its last: literals or variables."""

    def written(end: Expr) -> str:
        if isinstance(end, Const):
            return str(end.value)
        name = e.writer.fresh("own")
        e.writer.write(f"const idx {name} = (idx)({bare(e.body(end, point))});")
        e.writer.define(name)
        return name

    return written(ends.first), written(ends.end)
