"""The vectors that tensor cores multiply with decoded rows: the functor `vectors`, from which a lane gets its operands of a block."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from monotile.analysis.contraction import uncast
from monotile.analysis.rounding import unrounded
from monotile.codegen.address import readable
from monotile.codegen.base import plus
from monotile.codegen.block import BlockEmitter
from monotile.codegen.packs import lane_of
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.ir.expr import Axis, Expr, Load, add, idx, mul, substitute
from monotile.kernels.common.cuda_operands import ELEMENT
from monotile.kernels.common.cuda_threads import placed, region
from monotile.kernels.gemv import tiles
from monotile.kernels.gemv.cuda_decode import order_of
from monotile.kernels.gemv.cuda_tasks import TaskRows, vector_at
from monotile.kernels.gemv.method import GemvMma

ROUNDS = 8  # chunks of the vectors that a thread loads before it stores any
Fields = dict[str, object]  # of the device's configuration


def write_on_chip(
    e: BlockEmitter, site: Site, rows: TaskRows, vectors: Sequence[Range], pitch: int
) -> Fields:
    """Copies all vectors on chip, rounded to the tensor cores' type, in chunks of neighbours, in the order of the codes."""
    method, found, w = rows.method, rows.found, e.writer
    assert isinstance(method, GemvMma)
    many, kind = region(vectors), ELEMENT[found.factor.dtype]
    count, (per, places) = tiles.elements(found, method.run), order_of(found, method)
    width = min(8, count)
    chunks, threads = found.along.extent // width, e.plan.launch.threads
    total = many * chunks
    rounds = min(ROUNDS, -(-total // threads))
    w.write(f"{kind}* const on_chip = ({kind}*)own;")
    head = f"for (idx first = threadIdx.x; first < {total}; first += {rounds * threads})"
    with w.open(head, ["first"], fence=True):
        w.write(f"mt::Pack<{kind}, {width}> chunks[{rounds}];")
        with _each_chunk(e, rounds, total):
            at = unflatten(Axis("number", total), [Axis("m", many), Axis("chunk", chunks)])
            w.write(
                f"const idx m = {bare(e.index(at['m']))}, chunk = {bare(e.index(at['chunk']))};"
            )
            w.define("m")
            w.define("chunk")
            begin = mul(Axis("chunk", chunks), idx(width))
            _write_chunk(e, rows, _place(site, rows, vectors, begin), width, "chunks[j]")
        with _each_chunk(e, rounds, total):
            w.write(f"{kind}* const to = on_chip + number / {chunks} * {pitch};")
            if per > 1:
                order = f"{count}, {per}, {places}u"
                w.write(f"mt::store_ordered<{order}>(to, number % {chunks}, chunks[j]);")
            else:
                place = f"mt::vector_place<{count}, {width}>(number % {chunks})"
                w.write(f"mt::store(to + {place}, chunks[j]);")
    w.write(f"const mt::ChipVectors<{kind}, {count}, {pitch}> vectors{{on_chip}};")
    return {"ahead": False, "per": 1, "places": 0}


def write_in_memory(
    e: BlockEmitter, site: Site, rows: TaskRows, vectors: Sequence[Range]
) -> Fields:
    """Writes a functor that loads, or computes, a lane's elements from memory."""
    method, found, w = rows.method, rows.found, e.writer
    assert isinstance(method, GemvMma)
    kind, count = ELEMENT[found.factor.dtype], tiles.elements(found, method.run)
    width, blocks = min(8, count), found.along.extent // (4 * count)
    head = "auto vectors = [&](idx m, idx block, idx own)"
    with w.open(head, ["m", "block", "own"], fence=True, tail=";"):
        w.write(f"mt::Pack<uint32_t, {count // 2}> words;")
        with w.open(f"for (idx j = 0; j < {count // width}; ++j)", ["j"], fence=True) as loop:
            loop.pragma = "#pragma unroll"
            lane = add(mul(Axis("block", blocks), idx(4)), Axis("own", 4))
            chunk = add(mul(lane, idx(count // width)), Axis("j", count // width))
            w.write(f"mt::Pack<{kind}, {width}> chunk;")
            _write_chunk(
                e, rows, _place(site, rows, vectors, mul(chunk, idx(width))), width, "chunk"
            )
            w.write(f"memcpy(words.value + j * {width // 2}, chunk.value, sizeof(chunk.value));")
        w.write("return words;")
    per, places = order_of(found, method)
    return {"ahead": True, "per": per, "places": f"{places}u"}


def _place(site: Site, rows: TaskRows, vectors: Sequence[Range], begin: Expr) -> Mapping[str, Expr]:
    """The axes of the step for vector `m`, in the lanes that begin at a column."""
    assert isinstance(rows.method, GemvMma)
    width = min(8, tiles.elements(rows.found, rows.method.run))
    m = vector_at(rows, vectors, Axis("m", region(vectors)))
    return placed(site.point, m) | {rows.found.along.name: add(begin, lane_of(width))}


def _write_chunk(
    e: BlockEmitter, rows: TaskRows, point: Mapping[str, Expr], width: int, to: str
) -> None:
    """Loads `width` neighbours of a vector as words if memory has them in the factor's type; otherwise evaluates them."""
    w, found, kind = e.writer, rows.found, ELEMENT[rows.found.factor.dtype]
    value = unrounded(uncast(found.vectors))
    start = _stored(e, value, point, width) if value.dtype is found.factor.dtype else None
    if start is not None:
        load = f"mt::load<{width // 2}>((const uint32_t*)({start}))"
        w.write(f"memcpy({to}.value, {load}.value, sizeof({to}.value));")
        return
    with e.vector(width):
        w.write(f"{to}[lane] = mt::cast<{kind}>({bare(e.body(value, point))});")


def _stored(e: BlockEmitter, value: Expr, point: Mapping[str, Expr], width: int) -> str | None:
    """The address of a vector access to `value`; None if it is not in memory, or not contiguous."""
    if not isinstance(value, Load) or e.computed(value.tensor):
        return None
    place = readable(e.plan.places[value.tensor.name], own=False)
    index = [substitute(i, dict(point)) for i in value.index]
    first = e.first_of(value.tensor, index, place, Axis("lane", width), {"lane"})
    return None if first is None else plus(*e.address(value.tensor, first, place))


@contextmanager
def _each_chunk(e: BlockEmitter, rounds: int, total: int) -> Generator[None]:
    """A loop over the chunks of a thread's round."""
    w = e.writer
    with w.open(f"for (idx j = 0; j < {rounds}; ++j)", ["j"], fence=True) as loop:
        loop.pragma = "#pragma unroll"
        w.write(f"const idx number = first + j * {e.plan.launch.threads};")
        with w.open(f"if (number < {total})", ["number"], fence=True):
            yield
