"""Completes a reduction's method when the rest of the Plan is known: outputs and loads in flight of a group of lanes; on the CPU, the
direction of vectors."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec

from monotile.analysis.ends import segment_ends, share_of_terms
from monotile.analysis.windows import sliding
from monotile.codegen.lines import Lines
from monotile.codegen.site import Site
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Tensor,
    axes_of,
    children,
    loads,
    substitute,
    walk,
)
from monotile.ir.program import Compute, value_of
from monotile.kernels.common.cost import distinct_loads
from monotile.kernels.common.cuda_threads import placed, region, spread
from monotile.kernels.common.vectors import elements, exact_width, fitting, narrowed
from monotile.kernels.family import Settling
from monotile.kernels.reduction.cuda_pinned import pinned_weight, read_pinned
from monotile.kernels.reduction.cuts import (
    AT_ONCE,
    MOST_INSTRUCTIONS,
    MOST_LOADED,
    MOST_PARTS,
    MOST_STRAIGHT,
    MOST_TOGETHER,
    MOST_UNROLLED,
    SIDE_BY_SIDE,
)
from monotile.kernels.reduction.form import Form, differs, form_of
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.kernels.reduction.simd import simd_of
from monotile.kernels.reduction.slots import cheapest, cycles_of_lanes, why_not_several
from monotile.plan.nodes import Method
from monotile.targets.model import fitted

DIVISION = 5  # instructions of an integer division
MOST_OWN = 8  # terms of a segmented reduction that a thread has in flight at once
# Outputs of all runs of a group, or rows in flight, where terms have a live bound, or where a partial result is a sum and its squares.
MOST_LIVE = 8


def settle(where: Settling) -> Method:
    """The completed method: with the number of outputs at once that costs least, or with its vectors."""
    method, view = where.step.method, where.view
    assert isinstance(method, Reduce)
    site = view.site(where.step)
    if not isinstance(site.anchor, Compute):
        return method
    if not where.target.has.lockstep:
        return msgspec.structs.replace(method, simd=simd_of(site, site.anchor, method, Lines(view)))
    if method.side_by_side:
        return _neighbours(method, where)
    if (single := _single_thread(method, where)) is not None:
        return single
    order = method.order or tuple(range(len(site.anchor.reduce)))
    vector = fitting(method.vector, site.anchor.reduce[order[-1]].extent) if order else 1
    method = msgspec.structs.replace(method, vector=vector, together=1, runs=1, unroll=1)
    own = [r for r in view.residents if r.compute == site.anchor.out.name]
    images = [pinned_weight(n, r, "", where.stage, site.anchor) for n, r in enumerate(own)]
    body = read_pinned(site.anchor.body, images)
    site = replace(site, anchor=msgspec.structs.replace(site.anchor, body=body))
    near = {k.image for k in images}
    best = _cheapest(site, method, where, lambda t: t in near or view.on_chip(t))
    own = segment_ends(best.anchor) is not None
    unroll = min(_at_once(best.anchor, best.lanes), best.turns) if own else best.unroll
    return msgspec.structs.replace(method, together=best.together, runs=best.runs, unroll=unroll)


def _at_once(anchor: Compute, lanes: int) -> int:
    """The unroll factor for the terms of a segmented reduction: about the number of a lane's terms per output, a power of two."""
    terms = math.prod(a.extent for a in anchor.reduce) * share_of_terms(anchor) / lanes
    most = min(MOST_OWN, math.prod(a.extent for a in anchor.reduce))
    return min(most, 2 ** max(0, math.ceil(math.log2(max(terms, 1.0)))))


def _neighbours(method: Reduce, where: Settling) -> Reduce:
    """The method of threads with neighbouring outputs: as many as divide the task's outputs, fewer where threads would be idle."""
    dims, anchor = where.step.dims, where.anchor
    assert isinstance(anchor, Compute)
    width = exact_width(method.outputs, anchor, dims)
    if method.by_columns:
        turns = math.ceil(
            math.prod(a.extent for a in anchor.reduce) * share_of_terms(anchor) / method.lanes
        )
        most = fitted(where.target.model.reduction).rows
        most = min(most, MOST_LIVE) if anchor.live or isinstance(method, ReduceMoments) else most
        unroll = -(-turns // -(-turns // most)) if turns else 1
        return msgspec.structs.replace(method, outputs=width, exact=True, unroll=unroll)
    width = narrowed(width, elements(dims) // method.windows, where.target.threads)
    order = method.order or tuple(range(len(anchor.reduce)))
    extents = [anchor.reduce[p].extent for p in order]
    ends = segment_ends(anchor) is not None
    unrolled = (
        (_at_once(anchor, 1),)
        if ends
        else _unroll_factors(extents, method.windows, _read(anchor, method, width))
    )
    method = msgspec.structs.replace(method, outputs=width, exact=True, unrolled=unrolled)
    if not ends or why_not_several(anchor):
        return method
    return cheapest(anchor, _followers(where), dims, method, where.target)[0]


def _single_thread(method: Reduce, where: Settling) -> Reduce | None:
    """The method with a single thread per output of a segmented reduction, if that costs less than `method`'s lanes; else None."""
    anchor, dims, target = where.anchor, where.step.dims, where.target
    if not isinstance(anchor, Compute) or why_not_several(anchor) or method.lanes > target.warp:
        return None
    one = msgspec.structs.replace(method, lanes=1, exact=True)
    found, cycles = cheapest(anchor, _followers(where), dims, one, target)
    turns = _at_once(anchor, method.lanes)
    lanes = cycles_of_lanes(anchor, elements(dims), method.lanes, turns, target)
    return found if cycles < lanes else None


def _followers(where: Settling) -> list[Compute]:
    """The step's element-wise epilogue."""
    step = where.step
    rest = (where.view.statements[n] for n in step.computes[step.anchor + 1 :])
    return [s for s in rest if isinstance(s, Compute)]


def _read(anchor: Compute, method: Reduce, width: int) -> int:
    """Registers for the loads of a thread's iteration of the innermost loop."""
    found, every = sliding(anchor), distinct_loads(anchor.body)
    words = [-(-width * x.dtype.itemsize // 4) for x in every]
    if method.windows == 1 or found is None:
        return max(1, sum(words))
    terms = anchor.reduce[found.reduce].extent
    return max(words) * (found.reads(method.windows, terms) + terms)


def _unroll_factors(extents: list[int], slid: int, words: int) -> tuple[int, ...]:
    """`Reduce.unrolled` for reduce axes of these extents, of which the last is shared by `slid` windows if that is over 1.

    Whole loops are unrolled, from the innermost on, as long as there are not too many terms. The loop around them is unrolled as far as
    registers suffice for the loads, so that a thread waits once for all of them. words: registers for the loads of an iteration of the
    innermost loop.
    """
    inner = extents[-1] * slid if slid > 1 else 1
    terms, most = inner, MOST_STRAIGHT * (2 if slid > 1 else 1)
    out: list[int] = []
    for extent in reversed(extents[: len(extents) - (slid > 1)]):
        if terms * extent <= most or terms == 0:
            count = extent
        elif terms == 1:
            count = AT_ONCE
        else:
            rounds = -(-extent // max(1, MOST_LOADED * inner // (words * terms)))
            count = -(-extent // rounds) if terms <= most else 1
        terms *= extent
        out.append(count)
    return tuple(reversed(out))


def _cheapest(
    site: Site, method: Reduce, where: Settling, on_chip: Callable[[Tensor], bool]
) -> Form:
    """The form with the number of outputs at once that costs least, by round trips to memory and by loaded words."""
    model = fitted(where.target.model.reduction)
    form = form_of(site.anchor, site.step.dims, method, where.target.threads)
    anchor, axes, width = form.anchor, set(form.axes), form.width
    read = tuple(
        dict.fromkeys(x for x in loads(anchor.body) if any(axes_of(i) & axes for i in x.index))
    )
    each = _arithmetic(anchor.body)
    places = _instructions(anchor.body, site)  # addresses: once for all elements of a vector
    after = sum(_instructions(value_of(s), site) for s in site.followers)
    best, least = form, float("inf")
    size = min((x.dtype.itemsize for x in read), default=4)
    few = isinstance(method, ReduceMoments)
    for way in (w for w in _candidates(form, size) if w.parts <= MOST_LIVE or not few):
        far = sum(_words(x, site, way) for x in read if not on_chip(x.tensor))
        near = sum(_words(x, site, way) for x in read if on_chip(x.tensor))
        room = MOST_INSTRUCTIONS - way.finishes * after
        steps = room // (way.parts * (width * each + places))
        if way.parts > 1 and (far > MOST_LOADED or steps < 1):
            continue
        most = way.turns if way.turns <= 2 * MOST_UNROLLED else MOST_UNROLLED
        unroll = max(1, min(most, MOST_LOADED // max(far, 1), steps))
        trips = -(-way.turns // unroll) * (model.trip if far else model.chip_trip)
        cost = way.rounds * (trips + way.turns * (far + near) * model.word)
        if cost < least:
            best, least = replace(way, unroll=unroll), cost
    return best


def _candidates(form: Form, size: int) -> Iterator[Form]:
    """The candidates for a group's outputs at once. size: bytes of the narrowest element."""
    if not form.outputs or segment_ends(form.anchor) is not None:
        yield form
        return
    most = MOST_TOGETHER if form.lanes * form.width * size >= SIDE_BY_SIDE else 1
    for together in range(1, most + 1):
        if form.outputs % together == 0:
            several = -(-form.outputs // (together * form.groups))
            live = bool(form.anchor.live)
            most_parts = MOST_LIVE if live else MOST_PARTS
            for runs in range(1, min(most_parts // together, several) + 1):
                parts = together * runs
                if not live or parts & (parts - 1) == 0:  # whole rounds of what is bounded
                    yield replace(form, together=together, runs=runs)


def _instructions(e: Expr, site: Site) -> int:
    """About how many instructions an evaluation of `e` takes, indices included; common subexpressions count once."""
    where = spread(Axis("run", max(1, region(site.ranges))), site.ranges)
    here = substitute(e, dict(site.point) | where | placed(site.point, where))
    found = {x for x in walk(here) if children(x)}
    return 1 + sum(DIVISION if _divides(x) else 1 for x in found)


def _arithmetic(e: Expr) -> int:
    """The number of operations on loaded values."""
    inner = () if isinstance(e, Load) else children(e)
    return bool(inner) + sum(_arithmetic(x) for x in inner)


def _divides(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op in ("floordiv", "mod", "div")


def _words(x: Load, site: Site, form: Form) -> int:
    """Registers for the vectors of `x` in one iteration: one vector for all outputs that share it."""
    words = -(-form.width * x.dtype.itemsize // 4)
    by_run, by_u = differs(x, site, form)
    return words * (form.parts if by_u else form.runs if by_run else 1)
