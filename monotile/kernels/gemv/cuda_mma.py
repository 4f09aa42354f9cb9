"""Tiles of rows from the ring, decoded and multiplied with the vectors on tensor cores."""

from collections.abc import Mapping

from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range, Site
from monotile.kernels.common.cuda_config import config
from monotile.kernels.common.cuda_operands import ELEMENT
from monotile.kernels.common.cuda_threads import region
from monotile.kernels.gemv import tiles
from monotile.kernels.gemv.cuda_decode import write_decode
from monotile.kernels.gemv.cuda_decode_operands import CopiedOperand, store_sides
from monotile.kernels.gemv.cuda_tasks import TaskRows
from monotile.kernels.gemv.cuda_vectors import write_in_memory, write_on_chip
from monotile.kernels.gemv.method import GemvMma


def write_tiles(
    e: BlockEmitter,
    site: Site,
    rows: TaskRows,
    vectors: tuple[Range, ...],
    loaded: Mapping[str, CopiedOperand],
) -> None:
    """Copies vectors and sides on chip, and computes the product. The sums are stored for the combination across warps."""
    method, found, w = rows.method, rows.found, e.writer
    assert isinstance(method, GemvMma)
    many, kind = region(vectors), ELEMENT[found.factor.dtype]
    layout = tiles.layout(found, method, rows.count, many)
    w.write(f"char* const own = scratch + {site.step.scratch};")
    w.write(f"float* const sums = (float*)(own + {layout.sums});")
    if method.vectors == "chip":
        taken = write_on_chip(e, site, rows, vectors, layout.vector_pitch)
    else:
        taken = write_in_memory(e, site, rows, vectors)
    store_sides(e, loaded)
    write_decode(e, rows, layout)
    w.write("mt::block_barrier();")
    fields = config(
        "GemvConfig", {}, vectors=many, elements=tiles.elements(found, method.run), run=method.run, warps=method.warps, parts=method.parts,
        tiles=method.tiles, slots=-(-rows.count // method.slot_rows), pieces=method.pieces, runs=method.piece // method.run, pitch=method.pitch,
        **taken,
    )  # fmt: skip
    w.write(f"mt::gemv_mma<{kind}, {fields}>(ring, vectors, decode, sums);")
