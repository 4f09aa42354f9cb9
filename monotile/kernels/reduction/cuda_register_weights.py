"""Weights in registers: loaded once for all iterations of a loop, or prefetched before the vectors that they are multiplied with are
available."""

from monotile.codegen.address import readable
from monotile.codegen.base import STORAGE
from monotile.codegen.block import RegisterArray
from monotile.codegen.packs import LANE
from monotile.codegen.site import Site
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Axis, Load, idx, substitute
from monotile.kernels.reduction.cuda_lanes import each_vector, write_groups
from monotile.kernels.reduction.cuda_pinned import Pinned
from monotile.kernels.reduction.form import Form, differs, form_of
from monotile.kernels.reduction.method import Reduce


def register_array(name: str, x: Load, site: Site, form: Form) -> RegisterArray:
    """The layout of the register array `name`, which holds the operand `x` of the step's reduction."""
    assert form.steady
    by_run, by_u = differs(x, site, form)
    parts = [("turn", form.turns)]
    parts += [("v", form.runs)] if by_run or by_u else []
    parts += [("u", form.together)] if by_u else []
    number, count = "0", 1
    for part, extent in parts:
        count *= extent
        if extent > 1:
            front = f"({number})" if " " in number else number
            number = part if number == "0" else f"{front} * {extent} + {part}"
    return RegisterArray(name, STORAGE[x.dtype], form.width, count, number)


def pinned_array(e: VectorEmitter, kept: Pinned, site: Site) -> RegisterArray:
    """The same for a weight that a loop keeps. site: the step with kept weights read on chip."""
    return register_array(f"held_{kept.image.name}", kept.within, site, _form(e, site))


def write_fill_registers(e: VectorEmitter, kept: Pinned, site: Site, held: RegisterArray) -> None:
    """Writes the body of the function that fills the registers from on-chip memory."""
    form = _form(e, site)
    write_groups(e, form)
    with each_vector(e, site, form) as point:
        first = {name: substitute(x, {LANE: idx(0)}) for name, x in point.items()}
        index = [substitute(i, first) for i in kept.within.index]
        pointer, offset = e.address(kept.image, index, kept.place)
        load = f"mt::load<{held.width}>({pointer} + {bare(offset)})"
        e.writer.write(f"{held.name}.value[{held.number}] = {load};")


def write_weight_prefetch(
    e: VectorEmitter, site: Site, wanted: tuple[Load, ...], name: str
) -> dict[str, RegisterArray]:
    """Writes the loads of the weights `wanted` into registers. Returns the register arrays by tensor name."""
    out: dict[str, RegisterArray] = {}
    form = _form(e, site)
    for number, x in enumerate(wanted):
        held = register_array(f"{name}_{number}", x, site, form)
        place = readable(e.plan.places[x.tensor.name], own=False)
        e.writer.write(f"{held.kind} {held.name};")
        e.writer.define(held.name)
        with e.writer.open("", fence=True):
            write_groups(e, form)
            with each_vector(e, site, form) as point:
                index = [substitute(i, point) for i in x.index]
                first = e.first_of(x.tensor, index, place, Axis(LANE, held.width), {LANE})
                assert first is not None
                load = e.packed(x.tensor, first, place, held.width)
                e.writer.write(f"{held.name}.value[{held.number}] = {load};")
        out[x.tensor.name] = held
    return out


def _form(e: VectorEmitter, site: Site) -> Form:
    assert isinstance(site.step.method, Reduce)
    return form_of(site.anchor, site.step.dims, site.step.method, e.plan.launch.threads)
