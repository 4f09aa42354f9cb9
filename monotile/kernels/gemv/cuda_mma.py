"""Tiles of rows that come through the ring, decoded and multiplied with the vectors on tensor cores."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.contraction import uncast
from monotile.analysis.encoding import Side
from monotile.analysis.rounding import unrounded
from monotile.codegen.base import STORAGE
from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import lane_of
from monotile.ir.expr import (
    Axis,
    Load,
    add,
    idx,
    mul,
    substitute,
)
from monotile.kernels.common.cuda_config import config
from monotile.kernels.common.cuda_operands import ELEMENT
from monotile.kernels.common.cuda_threads import inside, placed, region, spread
from monotile.kernels.gemv import tiles
from monotile.kernels.gemv.cuda_decode import order_of, write_decode
from monotile.kernels.gemv.cuda_tasks import TaskRows
from monotile.kernels.gemv.method import GemvMma

WIDEST = 16  # bytes of one access
ROUNDS = 8  # chunks of the vectors that a thread asks for before it stores any


@dataclass(frozen=True, slots=True)
class _Asked:
    """A side of the task's rows, on its way in registers: `name` is an array of packs of `width` values, of which a row has `packs`."""

    name: str
    array: tiles.SideArray
    width: int
    packs: int
    rounds: int
    rows: int


def ask_sides(e: BlockEmitter, rows: TaskRows, many: int) -> list[_Asked]:
    """Asks for what the rows' decoding needs besides their codes: it is nobody's result. many: vectors."""
    method, codes = rows.method, rows.found.codes
    assert isinstance(method, GemvMma)
    if codes is None:
        return []
    layout = tiles.layout(rows.found, method, rows.count, many)
    sides = [_ask(e, rows, s, a) for s, a in zip(codes.sides, layout.sides, strict=True)]
    return sides + [
        _ask_table(e, rows, x, a) for x, a in zip(codes.tables, layout.tables, strict=True)
    ]


def _ask_table(e: BlockEmitter, rows: TaskRows, load: Load, array: tiles.SideArray) -> _Asked:
    """Each thread asks for an element."""
    w, name = e.writer, e.writer.fresh("table")
    asked = _Asked(name, array, 1, array.count, 1, rows=1)
    w.write(f"mt::Pack<{STORAGE[array.dtype]}, 1> {name}[1];")
    with _each(e, asked):
        own = Load(load.tensor, (*load.index[:-1], Axis("pack", array.count)))
        w.write(f"{name}[j] = mt::load_constant<1>({e.address_of(own, rows.point)});")
    return asked


def _ask(e: BlockEmitter, rows: TaskRows, side: Side, array: tiles.SideArray) -> _Asked:
    w, threads, along = e.writer, e.plan.launch.threads, rows.found.along
    value = Axis("value", array.count)
    load = substitute(side.load, {along.name: mul(value, idx(side.run))})
    assert isinstance(load, Load)
    width = contiguous_run(offset(load), value, WIDEST // array.dtype.itemsize)
    packs = array.count // width
    name, total = w.fresh("side"), rows.count * packs
    asked = _Asked(name, array, width, packs, -(-total // threads), rows.count)
    w.write(f"mt::Pack<{STORAGE[array.dtype]}, {width}> {name}[{asked.rounds}];")
    with _each(e, asked):
        where = spread(Axis("row", rows.count), rows.ranges)
        at = placed(rows.point, where) | {"value": mul(Axis("pack", packs), idx(width))}
        address = e.address_of(load, at)
        with inside(e, rows.ranges, where):
            w.write(f"{name}[j] = mt::load_constant<{width}>({address});")
    return asked


def _each(e: BlockEmitter, asked: _Asked) -> ExitStack:
    """Inside, `row` and `pack` are those of the thread's j-th pack, if there is one."""
    w, stack = e.writer, ExitStack()
    threads, total = e.plan.launch.threads, asked.rows * asked.packs
    head = f"for (idx j = 0; j < {asked.rounds}; ++j)"
    stack.enter_context(w.open(head, ["j"], fence=True)).pragma = "#pragma unroll"
    w.write(f"const idx number = j * {threads} + threadIdx.x;")
    stack.enter_context(w.open(f"if (number < {total})", fence=True))
    w.write(f"const idx row = number / {asked.packs}, pack = number % {asked.packs};")
    w.define("row")
    w.define("pack")
    return stack


def write_tiles(
    e: BlockEmitter,
    site: Site,
    rows: TaskRows,
    vectors: tuple[Range, ...],
    sides: Sequence[_Asked],
) -> None:
    """Vectors and sides on chip, and the product: sums to where all warps leave theirs."""
    method, found, w = rows.method, rows.found, e.writer
    assert isinstance(method, GemvMma)
    many, kind = region(vectors), ELEMENT[found.factor.dtype]
    layout = tiles.layout(found, method, rows.count, many)
    w.write(f"char* const own = scratch + {site.step.scratch};")
    w.write(f"{kind}* const vectors = ({kind}*)own;")
    w.write(f"float* const sums = (float*)(own + {layout.sums});")
    _write_vectors(e, site, rows, vectors, layout)
    for asked in sides:
        with _each(e, asked):
            size = asked.width * asked.array.dtype.itemsize
            to = f"own + {asked.array.offset} + row * {asked.array.pitch} + pack * {size}"
            w.write(f"mt::store_words({to}, {asked.name}[j]);")
    write_decode(e, rows, layout)
    w.write("mt::block_barrier();")
    count = tiles.elements(found, method.run)
    fields = config(
        "GemvConfig", {}, vectors=many, vector_pitch=layout.vector_pitch, elements=count, run=method.run,
        warps=method.warps, parts=method.parts, tiles=method.tiles, slots=-(-rows.count // method.slot_rows),
        pieces=method.pieces, blocks=method.piece // (4 * method.run), pitch=method.pitch,
    )  # fmt: skip
    w.write(f"mt::gemv_mma<{kind}, {fields}>(ring, vectors, decode, sums);")


def _write_vectors(
    e: BlockEmitter, site: Site, rows: TaskRows, vectors: tuple[Range, ...], layout: tiles.Layout
) -> None:
    """All vectors, rounded to what tensor cores take, in chunks of neighbours."""
    method, found, w = rows.method, rows.found, e.writer
    assert isinstance(method, GemvMma)
    many, kind = region(vectors), ELEMENT[found.factor.dtype]
    count = tiles.elements(found, method.run)
    width = min(8, count)
    chunks, threads = found.along.extent // width, e.plan.launch.threads
    total = many * chunks
    rounds = min(ROUNDS, -(-total // threads))
    with w.open(
        f"for (idx first = threadIdx.x; first < {total}; first += {rounds * threads})",
        ["first"],
        fence=True,
    ):
        w.write(f"mt::Pack<{kind}, {width}> chunks[{rounds}];")
        with _each_chunk(e, rounds, total):
            at = unflatten(Axis("number", total), [Axis("m", many), Axis("chunk", chunks)])
            w.write(
                f"const idx m = {bare(e.index(at['m']))}, chunk = {bare(e.index(at['chunk']))};"
            )
            w.define("m")
            w.define("chunk")
            column = add(mul(Axis("chunk", chunks), idx(width)), lane_of(width))
            point = placed(site.point, spread(Axis("m", many), vectors)) | {
                found.along.name: column
            }
            with e.vector(width):
                text = bare(e.body(unrounded(uncast(found.vectors)), point))
                w.write(f"chunks[j][lane] = mt::cast<{kind}>({text});")
        with _each_chunk(e, rounds, total):
            order = order_of(found, method)
            w.write(f"{kind}* const to = vectors + number / {chunks} * {layout.vector_pitch};")
            if order:
                w.write(f"mt::store_ordered<{count}, {order}>(to, number % {chunks}, chunks[j]);")
            else:
                place = f"mt::vector_place<{count}, {width}>(number % {chunks})"
                w.write(f"mt::store(to + {place}, chunks[j]);")


@contextmanager
def _each_chunk(e: BlockEmitter, rounds: int, total: int) -> Generator[None]:
    """For each chunk of a thread's round."""
    w = e.writer
    with w.open(f"for (idx j = 0; j < {rounds}; ++j)", ["j"], fence=True) as loop:
        loop.pragma = "#pragma unroll"
        w.write(f"const idx number = first + j * {e.plan.launch.threads};")
        with w.open(f"if (number < {total})", ["number"], fence=True):
            yield
