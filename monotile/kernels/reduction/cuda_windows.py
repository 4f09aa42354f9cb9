"""A reduction step whose threads have several neighbouring outputs each, like the elements of a map: their loads are contiguous.

Windows of neighbouring outputs overlap. For several of them, a thread first loads all positions along the last axis of the reduction, each
once; the terms follow in straight-line code.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

import msgspec

from monotile.analysis.affine import normalised_indices
from monotile.analysis.ends import SegmentEnds, neutral, segment_ends
from monotile.analysis.masked import without_masks
from monotile.analysis.speculative import speculative
from monotile.analysis.uniform import fold_uniform
from monotile.codegen.packs import LANE, lane_of
from monotile.codegen.site import Site
from monotile.codegen.spelling import bare
from monotile.codegen.thread_map import ThreadMap
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.errors import InternalError
from monotile.ir.expr import Axis, Expr, Load, Select, axes_of, idx, loads, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_fetches import look_up
from monotile.kernels.common.cuda_live import live_turns
from monotile.kernels.common.cuda_prefetch import looked_up, read_by
from monotile.kernels.common.cuda_threads import inside, placed, thread_map
from monotile.kernels.reduction.cuda_combiner import combiner_of, finish
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.kernels.reduction.segmented import LIVE, segment_rounds, within, write_ends


def write_windows(e: VectorEmitter, site: Site, method: Reduce) -> None:
    anchor = site.anchor
    if not isinstance(anchor, Compute) or anchor.combiner is None:
        raise InternalError(f"step {site.step.computes} has nothing to reduce")
    op = combiner_of(anchor, method)
    own = thread_map(e, site, method.outputs, method.windows)
    w, parts = e.writer, own.width * own.windows
    with ExitStack() as stack:
        stack.enter_context(w.open(own.head, ["e"], fence=True))
        stack.enter_context(inside(e, site.ranges, own.element(site.ranges, idx(0))))
        w.write(f"{op}::Part part[{parts}];")
        w.write("#pragma unroll")
        w.write(f"for (idx u = 0; u < {parts}; ++u) part[u] = {op}::identity();")
        axes = [anchor.reduce[p] for p in method.order]
        if (ends := segment_ends(anchor)) is not None:
            site, limits = _segment_site(e, site, own, ends)
            _add_segment(e, site, own, axes[0].name, limits, method, op)
        else:
            _add_terms(e, site, own, axes, method, op)
        if own.windows > 1:
            head = f"for (idx window = 0; window < {own.windows}; ++window)"
            stack.enter_context(w.open(head, ["window"], fence=True)).pragma = "#pragma unroll"
            if (
                overlap := own.overlap(site.ranges)
            ) is not None:  # written once, as it may be in place
                text = bare(e.index(overlap))
                stack.enter_context(w.open(f"if (window >= {text})", fence=True))
        window = Axis("window", own.windows)
        point = placed(site.point, own.element(site.ranges, lane_of(own.width), window))
        with e.vector(own.width):
            finish(e, site, point, f"part[{_number(own, 'window')}]", anchor.body.dtype)


def _add_terms(
    e: VectorEmitter, site: Site, own: ThreadMap, axes: Sequence[Axis], method: Reduce, op: str
) -> None:
    """Adds all terms to a thread's partial results."""
    slid = axes[-1:] if own.windows > 1 else []
    with ExitStack() as loops:
        blocks = [loops.enter_context(_each(e, site, a)) for a in axes[: len(axes) - len(slid)]]
        if slid:
            _add_windows(e, site, own, slid[0], op)
        elif isinstance(method, ReduceMoments):
            _add_moments(e, site, own, op)
        else:
            _add(e, _term(site, own), _number(own, 0), own, op)
        for block, a, count in zip(blocks, axes, method.unrolled, strict=False):
            block.pragma = "#pragma unroll" + ("" if count == a.extent else f" {count}")


def _add_moments(e: VectorEmitter, site: Site, own: ThreadMap, op: str) -> None:
    e.writer.write(f"const float share = {op}::share(part[0]);")
    with e.vector(own.width):
        text = bare(e.root(_term(site, own)))
        e.writer.write(f"{op}::add(part[{_number(own, 0)}], {text}, share);")


def _add_segment(
    e: VectorEmitter, site: Site, own: ThreadMap, name: str, limits: tuple[str, str],
    method: Reduce, op: str,
) -> None:  # fmt: skip
    """Adds the terms between `limits`: their look-ups first, step by step."""
    w, (count, *_) = e.writer, method.unrolled
    with segment_rounds(e, name, limits, count) as turns:
        if isinstance(method, ReduceMoments):
            with turns():
                _add_moments(e, site, own, op)
            return
        term, early = speculative(fold_uniform(_term(site, own), Axis(LANE, own.width)), e.always_there)  # fmt: skip
        known = looked_up([term, *early], frozenset(), own.width)
        fetches, told = look_up(e, known, known.found if count > 1 else {}, own.width, name)
        for f in fetches:
            f.declare(w, count)
            with turns():
                f.load(w, name)
        with turns():
            for f in fetches:
                f.unpack(w)
            w.block.names.update(told)
            _add(e, term, _number(own, 0), own, op, early)


def _segment_site(
    e: VectorEmitter, site: Site, own: ThreadMap, ends: SegmentEnds
) -> tuple[Site, tuple[str, str]]:
    """`site` with the reduction's body as it is between the ends of a thread's outputs, and the texts of these ends. A condition on the
    output without which it has no terms (the zeros behind a row) makes the loop empty: a branch for each term would separate their
    look-ups."""
    first, end = write_ends(e, ends, placed(site.point, own.element(site.ranges, idx(0))))
    anchor = site.anchor
    assert isinstance(anchor, Compute)
    assert anchor.combiner is not None
    match ends.body:
        case Select(some, then, otherwise) if otherwise == neutral(anchor.combiner, then.dtype):
            where = placed(site.point, own.element(site.ranges, lane_of(own.width)))
            lane, some = Axis(LANE, own.width), substitute(some, where)
            some = fold_uniform(some, lane)
            if not loads(some) and not axes_of(some) & {lane, *anchor.reduce}:
                last = e.writer.fresh("own")
                e.writer.write(f"const idx {last} = {e.root(some)} ? {end} : {first};")
                e.writer.define(last)
                return within(site, msgspec.structs.replace(ends, body=then)), (first, last)
        case _:
            pass
    return within(site, ends), (first, end)


def _number(own: ThreadMap, window: int | str) -> str:
    """Text of the index of a lane's partial result in a window."""
    lane = LANE if own.width > 1 else "0"
    return lane if own.windows == 1 else f"{window} * {own.width} + {lane}"


def _term(site: Site, own: ThreadMap, window: Expr | None = None) -> Expr:
    """The term of a lane's output, which depends on the reduce axes."""
    assert isinstance(site.anchor, Compute)
    where = own.element(site.ranges, lane_of(own.width), window)
    return substitute(site.anchor.body, placed(site.point, where))


def _each(e: VectorEmitter, site: Site, a: Axis) -> AbstractContextManager[Block]:
    return _between(e, a, *live_turns(e, site, (a,), a.extent, 1))


def _between(e: VectorEmitter, a: Axis, first: str, end: str) -> AbstractContextManager[Block]:
    return e.writer.open(f"for (idx {a.name} = {first}; {a.name} < {end}; ++{a.name})", [a.name], fence=True)  # fmt: skip


def _add(
    e: VectorEmitter, term: Expr, number: str, own: ThreadMap, op: str,
    early: Sequence[Load] | None = None,
) -> None:  # fmt: skip
    """Adds `term` to a partial result. early: loads that come before it, of a term that only counts where `LIVE` is true."""
    with e.vector(own.width):
        for x in early or ():
            e.root(x)
        text = bare(e.root(term))
        sums = f"{op}::combine(part[{number}], {text})"
        kept = f"{LIVE} ? {sums} : part[{number}]"
        e.writer.write(f"part[{number}] = {sums if early is None else kept};")


def _add_windows(e: VectorEmitter, site: Site, own: ThreadMap, along: Axis, op: str) -> None:
    """Adds the terms of all windows along `along`. Loads shared by several windows are recognised by equal normalised indices."""
    lane = Axis(LANE, own.width)
    terms = [
        (_number(own, n), normalised_indices(fold_uniform(substitute(_term(site, own, idx(n)), {along.name: idx(k)}), lane)))
        for k in range(along.extent)
        for n in range(own.windows)
    ]  # fmt: skip
    wanted = read_by([term for _, term in terms])
    w, name = e.writer, e.writer.fresh("window")
    with w.open(f"auto fetch_{name} = [&]()", fence=True, tail=";"):
        names = e.held(wanted, own.width, name)
    w.write(f"const auto {name} = fetch_{name}();")
    w.block.names.update(names)
    held = {key[-1] if isinstance(key, tuple) else key for key in names}
    masks = {x: when for x, when in wanted.items() if x in held}
    for number, term in terms:
        _add(e, without_masks(term, masks), number, own, op)
