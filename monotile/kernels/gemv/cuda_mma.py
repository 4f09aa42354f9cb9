"""Tiles of rows that come through the ring, decoded and multiplied with the vectors on tensor cores."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from monotile.analysis.contraction import uncast
from monotile.analysis.rounding import unrounded
from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import lane_of
from monotile.ir.expr import (
    Axis,
    add,
    idx,
    mul,
)
from monotile.kernels.common.cuda_config import config
from monotile.kernels.common.cuda_operands import ELEMENT
from monotile.kernels.common.cuda_threads import placed, region, spread
from monotile.kernels.gemv import tiles
from monotile.kernels.gemv.cuda_decode import order_of, write_decode
from monotile.kernels.gemv.cuda_sides import Copied, store_sides
from monotile.kernels.gemv.cuda_tasks import TaskRows
from monotile.kernels.gemv.method import GemvMma

ROUNDS = 8  # chunks of the vectors that a thread asks for before it stores any


def write_tiles(
    e: BlockEmitter,
    site: Site,
    rows: TaskRows,
    vectors: tuple[Range, ...],
    asked: Mapping[str, Copied],
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
    store_sides(e, asked)
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
