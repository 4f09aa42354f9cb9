"""Segmented reductions: each output has its own range of terms, whose ends are data."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import msgspec

from monotile.analysis.ends import SegmentEnds
from monotile.codegen.block import BlockEmitter
from monotile.codegen.loops import Loops
from monotile.codegen.site import Point, Site
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Const, Expr
from monotile.ir.program import Compute


def within(site: Site, ends: SegmentEnds) -> Site:
    """`site` with the reduction's body as it is between the ends, without the comparisons with them."""
    assert isinstance(site.anchor, Compute)
    return replace(site, anchor=msgspec.structs.replace(site.anchor, body=ends.body))


def write_ends(
    e: Loops | VectorEmitter | BlockEmitter, ends: SegmentEnds, point: Point
) -> tuple[str, str]:
    """Writes the ends of the terms of the output at `point`. Returns the texts of the first term and of the one after the last: literals or
    variables."""

    def written(end: Expr) -> str:
        if isinstance(end, Const):
            return str(end.value)
        name = e.writer.fresh("own")
        e.writer.write(f"const idx {name} = (idx)({bare(e.body(end, point))});")
        e.writer.define(name)
        return name

    return written(ends.first), written(ends.end)


LIVE = "live"  # the variable that is true where a term is part of the sum


Turns = Callable[[], AbstractContextManager[None]]


@contextmanager
def segment_rounds(
    e: VectorEmitter, name: str, ends: tuple[str, str], count: int, lane: str = "", lanes: int = 1
) -> Generator[Turns]:
    """A loop over rounds of `count` terms: every `lanes`-th between `ends`, from that of `lane` on. Yields what opens a loop over the terms of a round,
    each as the variable `name`, which may be done several times: it is unrolled without branches, so that the loads of all terms are in
    flight together.

    A term beyond the end is the last one again, with `LIVE` false: an exact end would need a second, serial loop for the remainder.
    """
    w, (first, end), start = e.writer, ends, f"{name}_first"

    @contextmanager
    def turns() -> Generator[None]:
        head = f"for (idx turn = 0; turn < {count}; ++turn)"
        with w.open(head, ["turn"], fence=True) as block:
            block.pragma = "#pragma unroll"
            w.write(f"const idx {name}_there = {start} + turn * {lanes};")
            w.write(f"const bool {LIVE} = {name}_there < {end};")
            w.write(f"const idx {name} = {LIVE} ? {name}_there : {end} - 1;")
            w.define(LIVE)
            w.define(name)
            yield

    begin = f"{first} + {lane}" if lane else first
    head = f"for (idx {start} = {begin}; {start} < {end}; {start} += {lanes * count})"
    with w.open(head, [start], fence=True):
        yield turns


@contextmanager
def segment_terms(
    e: VectorEmitter, name: str, ends: tuple[str, str], count: int, lane: str = "", lanes: int = 1
) -> Generator[None]:
    """The same as one loop over all terms."""
    with segment_rounds(e, name, ends, count, lane, lanes) as turns, turns():
        yield
