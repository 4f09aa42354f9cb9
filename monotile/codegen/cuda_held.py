"""Weights that a worker's threads hold in registers through a loop: each what it multiplies with in every iteration."""

from dataclasses import dataclass

from monotile.codegen.base import STORAGE, Site
from monotile.codegen.cuda_reduce import differs, each_vector, form_of
from monotile.codegen.cuda_resident import Kept
from monotile.codegen.spelling import bare
from monotile.codegen.vector import LANE, VectorEmitter
from monotile.ir.expr import idx, substitute
from monotile.schedule.plan import Reduce


@dataclass(frozen=True, slots=True)
class Held:
    """`name` is an array of `count` vectors of `width` values; `number` is the text of the one that a thread needs in a turn of its reduction."""

    name: str
    element: str
    width: int
    count: int
    number: str

    @property
    def fill(self) -> str:
        """The name of the function that fills it."""
        return f"fill_{self.name}"

    @property
    def kind(self) -> str:
        return f"mt::Held<{self.element}, {self.width}, {self.count}>"


def held_of(e: VectorEmitter, kept: Kept, site: Site) -> Held | None:
    """How threads hold what is kept for the step; None where they need other vectors from one time to the next.

    site: reading on chip what is kept there.
    """
    method = site.step.method
    assert isinstance(method, Reduce)
    form = form_of(e, site, method)
    if form.rounds > 1 or form.unroll < form.turns or form.width == 1:
        return None
    by_run, by_u = differs(kept.within, site, form)
    parts = [("turn", form.turns)]
    parts += [("v", form.runs)] if by_run or by_u else []
    parts += [("u", form.together)] if by_u else []
    number, count = "0", 1
    for name, extent in parts:
        count *= extent
        if extent > 1:
            front = f"({number})" if " " in number else number
            number = name if number == "0" else f"{front} * {extent} + {name}"
    return Held(f"held_{kept.image.name}", STORAGE[kept.image.dtype], form.width, count, number)


def write_hold(e: VectorEmitter, kept: Kept, site: Site, held: Held) -> None:
    """The body of the function that fills the registers from what is on chip."""
    method = site.step.method
    assert isinstance(method, Reduce)
    form = form_of(e, site, method)
    lanes = (
        f"const idx group_lane = threadIdx.x % {form.lanes}, group = threadIdx.x / {form.lanes};"
    )
    e.writer.write(lanes)
    e.writer.define("group_lane")
    e.writer.define("group")
    with each_vector(e, site, form) as point:
        first = {name: substitute(x, {LANE: idx(0)}) for name, x in point.items()}
        index = [substitute(i, first) for i in kept.within.index]
        pointer, offset = e.address(kept.image, index, kept.place)
        load = f"mt::load<{held.width}>({pointer} + {bare(offset)})"
        e.writer.write(f"{held.name}.value[{held.number}] = {load};")
