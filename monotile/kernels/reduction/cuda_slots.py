"""A segmented reduction whose threads have several outputs at once, each with its own ends.

The ends are loaded together, then the indices of the next terms, then the elements at these indices: a thread waits once for all of them.
The code is straight-line, so that no branch separates two loads. For an output that has ended, the last term is loaded again and not
counted.
"""

import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec

from monotile.analysis.ends import SegmentEnds, neutral, segment_ends
from monotile.analysis.uniform import fold_uniform
from monotile.codegen.base import VALUES
from monotile.codegen.packs import LANE, lane_of
from monotile.codegen.site import Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.thread_map import ThreadMap
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.errors import InternalError
from monotile.ir.expr import (
    Axis,
    Expr,
    Load,
    Select,
    add,
    axes_of,
    idx,
    loads,
    mul,
    rebuild,
    substitute,
)
from monotile.ir.program import Compute
from monotile.kernels.common.combiners import COMBINER
from monotile.kernels.common.cuda_prefetch import read_by
from monotile.kernels.common.cuda_threads import inside, placed
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.reduction.segmented import LIVE, write_ends
from monotile.kernels.reduction.slots import Slots, slots_of


@dataclass(frozen=True, slots=True)
class _Walk:
    """A thread's outputs (slots) and terms. op: the combiner's type. width: of a vector of outputs. some: a condition on the output,
    besides the ends, without which it has no terms."""

    e: VectorEmitter
    site: Site
    anchor: Compute
    slots: Slots
    width: int
    op: str
    ends: SegmentEnds
    some: Expr | None

    @property
    def every(self) -> tuple[int, ...]:
        return (*self.slots.rows, *self.slots.columns)

    @property
    def by_row(self) -> bool:
        """Whether `some` is the same for all columns of a row."""
        names = {
            f"{stem}{k}" for k in self.slots.several(self.slots.columns) for stem in ("slot", "at")
        }
        return self.some is None or not names & {a.name for a in axes_of(self.some)}

    def item(self, k: int) -> Expr:
        """The thread's first vector along range `k`."""
        axes = [Axis(f"i{n}", x) for n, x in enumerate(self.slots.items)]
        items = math.prod(self.slots.items)
        return unflatten(Axis("e", items) if items > 1 else idx(0), axes)[f"i{k}"]

    def unclamped(self, k: int) -> Expr:
        """The slot's vector along range `k`; it may be beyond the last."""
        slot = Axis(f"slot{k}", self.slots.counts[k])
        return add(self.item(k), mul(slot, idx(self.slots.items[k])))

    def clamped(self, k: int) -> bool:
        """Whether a slot's vector along range `k` may be beyond the last."""
        s, r = self.slots, self.site.ranges[k]
        return s.items[k] * s.counts[k] > s.extents[k] or r.count != str(r.variable.extent)

    def size(self, k: int) -> int:
        """Elements of a vector along range `k`."""
        return self.width if k == len(self.site.ranges) - 1 else 1

    def where(self, lane: Expr) -> dict[str, Expr]:
        """The ranges' variables at `lane` of a vector, inside the tensor."""
        out: dict[str, Expr] = {}
        for k, r in enumerate(self.site.ranges):
            named = self.slots.counts[k] > 1 or self.clamped(k)
            at = Axis(f"at{k}", self.slots.extents[k]) if named else self.item(k)
            out[r.variable.name] = add(mul(at, idx(self.width)), lane) if self.size(k) > 1 else at
        return out

    def point(self, lane: Expr) -> dict[str, Expr]:
        return placed(self.site.point, self.where(lane))

    def number(self, dims: Sequence[int], turns: int = 0) -> str:
        """Text of the index of a slot among those along `dims`; with `turns`, of one of its `turns` terms."""
        text = ""
        for k in self.slots.several(dims):
            text = f"({text}) * {self.slots.counts[k]} + slot{k}" if text else f"slot{k}"
        if turns:
            return f"({text}) * {turns} + turn" if text else "turn"
        return text or "0"

    def part(self) -> str:
        """Text of the index of a lane's partial sum."""
        lane = LANE if self.width > 1 else "0"
        return f"({self.number(self.every)}) * {self.width} + {lane}"

    @contextmanager
    def each(self, dims: Sequence[int]) -> Generator[None]:
        """Unrolled loops over the slots along `dims`."""
        with ExitStack() as stack:
            for k in self.slots.several(dims):
                head = f"for (idx slot{k} = 0; slot{k} < {self.slots.counts[k]}; ++slot{k})"
                block = stack.enter_context(self.e.writer.open(head, [f"slot{k}"]))
                block.pragma = "#pragma unroll"
                self.write_place(k)
            yield

    def write_place(self, k: int) -> None:
        """Declares the slot's vector along range `k`, clamped to the last one of the tensor."""
        w, r = self.e.writer, self.site.ranges[k]
        text = bare(self.e.index(self.unclamped(k) if self.slots.counts[k] > 1 else self.item(k)))
        if self.clamped(k):
            size = self.size(k)
            last = f"({r.count} - 1) / {size}" if size > 1 else f"{r.count} - 1"
            text = f"mt_min_idx({text}, {last})"
        w.write(f"const idx at{k} = {text};")
        w.define(f"at{k}")


def write_slots(e: VectorEmitter, site: Site, method: Reduce) -> None:
    """Writes the step, after its operands are available."""
    walk = _walk(e, site, method)
    w, slots = e.writer, walk.slots
    own = ThreadMap(
        walk.width, math.prod(slots.items), site.step.first_thread, e.plan.launch.threads
    )
    parts = slots.count(walk.every) * walk.width
    with ExitStack() as stack:
        stack.enter_context(w.open(own.head, ["e"], fence=True))
        for k in walk.every:
            if slots.counts[k] == 1 and walk.clamped(k):
                walk.write_place(k)
        w.write(f"{walk.op}::Part part[{parts}];")
        w.write("#pragma unroll")
        w.write(f"for (idx u = 0; u < {parts}; ++u) part[u] = {walk.op}::identity();")
        _write_ends(walk)
        names = _fetch_after(walk)
        _add_terms(walk, method.unrolled[0])
        _finish(walk, names)


def _walk(e: VectorEmitter, site: Site, method: Reduce) -> _Walk:
    anchor = site.anchor
    ends = segment_ends(anchor) if isinstance(anchor, Compute) else None
    if ends is None or not isinstance(anchor, Compute) or anchor.combiner is None:
        raise InternalError(f"step {site.step.computes} has no outputs with ends of their own")
    op = f"mt::{COMBINER[anchor.combiner]}<{VALUES[anchor.body.dtype]}>"
    slots = slots_of(anchor, site.step.dims, method.outputs, method.at_once)
    plain = _Walk(e, site, anchor, slots, method.outputs, op, ends, None)
    match ends.body:
        case Select(cond, then, otherwise) if otherwise == neutral(anchor.combiner, then.dtype):
            lane = Axis(LANE, method.outputs)
            some = fold_uniform(substitute(cond, plain.point(lane_of(method.outputs))), lane)
            if not loads(some) and not axes_of(some) & {lane, *anchor.reduce}:
                ends = msgspec.structs.replace(ends, body=then)
                return _Walk(e, site, anchor, slots, method.outputs, op, ends, some)
        case _:
            pass
    return plain


def _write_ends(walk: _Walk) -> None:
    """Writes the ends of each row's terms, and the number of terms of the longest."""
    e, w, rows = walk.e, walk.e.writer, walk.slots.rows
    count = walk.slots.count(rows)
    w.write(f"idx own_first[{count}], own_end[{count}];")
    with walk.each(rows):
        first, end = write_ends(e, walk.ends, walk.point(idx(0)))
        if walk.some is not None and walk.by_row:
            end = f"{e.root(walk.some)} ? {end} : {first}"
        w.write(f"own_first[{walk.number(rows)}] = {first};")
        w.write(f"own_end[{walk.number(rows)}] = {end};")
    w.write("idx longest = 0;")
    w.write("#pragma unroll")
    longest = "mt_max_idx(longest, own_end[u] - own_first[u])"
    w.write(f"for (idx u = 0; u < {count}; ++u) longest = {longest};")


def _fetch_after(walk: _Walk) -> Mapping[Hashable, str]:
    """Writes the loads of the epilogues' operands for all slots. Returns their names within a slot."""
    e, w, slots, every = walk.e, walk.e.writer, walk.slots, walk.every
    point, lane = walk.point(lane_of(walk.width)), Axis(LANE, walk.width)
    bodies = [
        fold_uniform(substitute(s.body, point), lane)
        for s in walk.site.followers
        if isinstance(s, Compute)
    ]
    wanted = {
        x: c for x, c in read_by(bodies).items() if x.tensor.name not in walk.site.step.computes
    }
    if not wanted:
        return {}
    name, several = w.fresh("after"), slots.several(every)
    given = [f"slot{k}" for k in several]
    head = f"auto fetch_{name} = [&]({', '.join(f'idx {x}' for x in given)})"
    with w.open(head, given, fence=True, tail=";"):
        for k in several:
            walk.write_place(k)
        names = e.held(wanted, walk.width, f"{name}[{walk.number(every)}]")
    w.write(
        f"decltype(fetch_{name}({', '.join('0' for _ in given)})) {name}[{slots.count(every)}];"
    )
    with walk.each(every):
        w.write(f"{name}[{walk.number(every)}] = fetch_{name}({', '.join(given)});")
    return names


def _add_terms(walk: _Walk, turns: int) -> None:
    """Writes the loop that adds `turns` terms of each slot per iteration, up to the end of the longest: first all index loads, then the
    loads at these indices, then the sums."""
    e, w, every = walk.e, walk.e.writer, walk.every
    term = substitute(walk.ends.body, walk.point(lane_of(walk.width)))
    with w.open(f"for (idx step = 0; step < longest; step += {turns})", ["step"], fence=True):
        places = _look_up(walk, term, turns)
        term = _with_places(term, places)
        names, lines = _fetch_terms(walk, term, places, turns)
        with walk.each(every), _turns(walk, turns) as block:
            for line in lines:
                w.write(line)
            block.names.update(names)
            _write_term(walk, places, turns)
            _write_live(walk)
            with e.reading_clamped(walk.some is not None), e.vector(walk.width):
                sums = f"{walk.op}::combine(part[{walk.part()}], {bare(e.root(term))})"
                w.write(f"part[{walk.part()}] = {LIVE} ? {sums} : part[{walk.part()}];")


# The array that holds an index that data says, of an extent.
_Places = Mapping[tuple[Expr, int], str]
_Names = Mapping[Hashable, str]  # what was read, and as what


def _look_up(walk: _Walk, term: Expr, turns: int) -> _Places:
    """Writes the index loads of `term` that all columns of a row share, for each row and term of an iteration. Returns the arrays of these indices."""
    e, w, rows = walk.e, walk.e.writer, walk.slots.rows
    columns = walk.slots.several(walk.slots.columns)
    own = {LANE, *(f"{stem}{k}" for k in columns for stem in ("slot", "at"))}
    found = {
        (i, extent): x.tensor
        for x in loads(term)
        for i, extent in zip(x.index, x.tensor.shape, strict=True)
        if loads(i) and not own & {a.name for a in axes_of(i)}
    }
    places = {key: w.fresh("place") for key in found}
    for name in places.values():
        w.write(f"idx {name}[{walk.slots.count(rows) * turns}];")
    if not places:
        return {}
    with walk.each(rows), _turns(walk, turns):
        _write_term(walk, {}, turns)
        for (i, extent), name in places.items():
            at = e.position(i, extent, found[i, extent])
            w.write(f"{name}[{walk.number(rows, turns)}] = {bare(e.index(at))};")
    for name in places.values():
        w.write(f"mt::ask_together({name});")
    return places


def _with_places(e: Expr, places: _Places) -> Expr:
    """`e` with variables instead of the loaded indices."""

    def go(x: Expr) -> Expr:
        if not isinstance(x, Load):
            return rebuild(x, go)
        shape = x.tensor.shape
        found = (((i, n), places.get((i, n))) for i, n in zip(x.index, shape, strict=True))
        return Load(x.tensor, tuple(Axis(f"{k}_at", n) if k else go(i) for (i, n), k in found))

    return go(e)


def _fetch_terms(walk: _Walk, term: Expr, places: _Places, turns: int) -> tuple[_Names, list[str]]:
    """Writes the loads of all slots' terms. Returns their names within a term, and the lines that define them."""
    lane = Axis(LANE, walk.width)
    wanted = read_by([fold_uniform(term, lane)])
    alike = {x: when for x, when in wanted.items() if lane not in axes_of(x) | axes_of(when)}
    apart = {x: when for x, when in wanted.items() if x not in alike}
    names: dict[Hashable, str] = {}
    lines: list[str] = []
    asked: list[str] = []
    for found, width in ((alike, 1), (apart, walk.width)):
        if found:
            name = walk.e.writer.fresh("read")
            more, line = _fetch(walk, name, found, width, places, turns)
            names |= more
            lines.append(line)
            asked.append(name)
    for name in asked:
        walk.e.writer.write(f"mt::ask_together({name});")
    return names, lines


def _fetch(
    walk: _Walk, name: str, wanted: Mapping[Load, Expr], width: int, places: _Places, turns: int
) -> tuple[_Names, str]:
    """The same for vectors of `width` elements, in the array `name`."""
    e, w, every = walk.e, walk.e.writer, walk.every
    given = [*(f"slot{k}" for k in walk.slots.several(every)), "turn"]
    fetch, number = f"fetch_{name}", walk.number(every, turns)
    head = f"auto {fetch} = [&]({', '.join(f'idx {x}' for x in given)})"
    with w.open(head, given, fence=True, tail=";"):
        for k in walk.slots.several(every):
            walk.write_place(k)
        _write_term(walk, places, turns)
        with e.reading_clamped(walk.some is not None):
            names = e.held(wanted, width, f"{name}_now")
    kind = f"mt::Words<decltype({fetch}({', '.join('0' for _ in given)}))>"
    w.write(f"{kind} {name}[{walk.slots.count(every) * turns}];")
    with walk.each(every), _turns(walk, turns):
        w.write(f"{name}[{number}] = mt::words({fetch}({', '.join(given)}));")
    return names, f"const auto {name}_now = {name}[{number}].whole();"


@contextmanager
def _turns(walk: _Walk, turns: int) -> Generator[Block]:
    head = f"for (idx turn = 0; turn < {turns}; ++turn)"
    with walk.e.writer.open(head, ["turn"], fence=True) as block:
        block.pragma = "#pragma unroll"
        yield block


def _write_term(walk: _Walk, places: _Places, turns: int) -> None:
    """Declares the position of the current term, and its loaded indices. For an output that has ended it is the last term, or position 0."""
    w, (axis,), rows = walk.e.writer, walk.anchor.reduce, walk.slots.rows
    number = walk.number(rows)
    term = f"own_first[{number}] + step + turn"
    w.write(f"const idx {axis.name} = mt_max_idx(mt_min_idx({term}, own_end[{number}] - 1), 0);")
    w.define(axis.name)
    for name in places.values():
        w.write(f"const idx {name}_at = {name}[{walk.number(rows, turns)}];")
        w.define(f"{name}_at")


def _write_live(walk: _Walk) -> None:
    """Declares whether the current term counts."""
    w, number = walk.e.writer, walk.number(walk.slots.rows)
    test = f"own_first[{number}] + step + turn < own_end[{number}]"
    if walk.some is not None and not walk.by_row:
        test += f" && {walk.e.root(walk.some)}"
    w.write(f"const bool {LIVE} = {test};")
    w.define(LIVE)


def _finish(walk: _Walk, names: Mapping[Hashable, str]) -> None:
    """Stores each slot that is inside the tensor, and writes its epilogue. names: of the epilogue's prefetched operands."""
    e, w, slots, ranges = walk.e, walk.e.writer, walk.slots, walk.site.ranges
    with ExitStack() as stack:
        stack.enter_context(walk.each(walk.every))
        stack.enter_context(w.open("", fence=True))
        where: dict[str, Expr] = {}
        for k, r in enumerate(ranges):
            vector = walk.unclamped(k) if slots.counts[k] > 1 else walk.item(k)
            if slots.items[k] * slots.counts[k] > slots.extents[k]:
                test = f"{bare(e.index(vector))} < {slots.extents[k]}"
                stack.enter_context(w.open(f"if ({test})", fence=True))
            where[r.variable.name] = mul(vector, idx(walk.size(k)))
        stack.enter_context(inside(e, ranges, where))
        w.block.names.update(names)
        with e.vector(walk.width):
            point = walk.point(lane_of(walk.width))
            e.finish(walk.site, point, f"part[{walk.part()}]", walk.anchor.body.dtype)
