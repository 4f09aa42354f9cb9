"""Reductions in which each output has its own first and last terms."""

from collections.abc import Generator
from contextlib import contextmanager
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


LIVE = "live"  # the variable that says whether a term counts


@contextmanager
def own_terms(
    e: VectorEmitter, name: str, ends: tuple[str, str], count: int, lane: str = "", lanes: int = 1
) -> Generator[None]:
    """Each `lanes`-th term between `ends` as the variable `name`, from that of the `lane` on: `count` in straight line, whose loads are on their way together.
    What is over the end is read as the last term again, but not `LIVE`: a loop that ended exactly there would have another behind it for
    what is left of `count`, which reads one term after the other."""
    w, (first, end), start = e.writer, ends, f"{name}_first"
    begin = f"{first} + {lane}" if lane else first
    head = f"for (idx {start} = {begin}; {start} < {end}; {start} += {lanes * count})"
    turns = f"for (idx turn = 0; turn < {count}; ++turn)"
    with w.open(head, [start], fence=True), w.open(turns, ["turn"], fence=True) as block:
        block.pragma = "#pragma unroll"
        w.write(f"const idx {name}_there = {start} + turn * {lanes};")
        w.write(f"const bool {LIVE} = {name}_there < {end};")
        w.write(f"const idx {name} = {LIVE} ? {name}_there : {end} - 1;")
        w.define(LIVE)
        w.define(name)
        yield
