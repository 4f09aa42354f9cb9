"""What becomes of the sums of a product, or of attention: lambdas that the device code calls for each vector of them."""

from collections.abc import Hashable, Sequence

from monotile.analysis.unconditional import TRUE, unconditional
from monotile.codegen.site import Range, Site
from monotile.codegen.vector import VectorEmitter
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Load, axes_of, substitute
from monotile.ir.program import Compute, value_of
from monotile.kernels.common.cuda_operands import neighbours_of
from monotile.kernels.common.cuda_threads import neighbours, placed
from monotile.kernels.common.epilogue import RowResult

KERNEL = {"wgmma": "WGMMA", "mma.m16n8k16": "MMA", "fma": "FMA"}


def write_epilogue(
    e: VectorEmitter,
    site: Site,
    anchor: Compute,
    m: Range,
    n: Range,
    width: int,
    by_rows: Sequence[RowResult] = (),
    first: str = "",
) -> None:
    """The lambdas `fetch`, of what follows the sums' other operands, and `epilogue`, which computes and stores. If some results
    leave by rows, `epilogue` has them wait in cells, and `singles` stores one element where it belongs.

    first: text of a thread's first column, if it has the same ones in all its turns: what depends on these alone it loads once.
    """
    e.cells = {r.made.out.name: r.cell for r in by_rows}
    row, column = m.variable.name, n.variable.name
    point = placed(site.point, {column: neighbours(n.variable, width)})
    own = {anchor.out.name, *(s.out.name for s in site.followers)}
    wanted = dict.fromkeys(
        x
        for s in site.followers
        for x in unconditional(substitute(value_of(s), point))
        if x.tensor.name not in own
    )
    w = e.writer
    steady = dict[Load, Expr]()
    if first:
        steady = {x: TRUE for x in wanted if x.tensor.name in e.constant and m.variable not in axes_of(x)}  # fmt: skip
    columns = dict[Hashable, str]()
    if steady:
        with w.open(f"auto fetch_columns = [&](idx {column})", [column], fence=True, tail=";"):
            neighbours_of(e, n.variable, width)
            columns = e.held(steady, width, "columns")
        w.write("mt::Words<decltype(fetch_columns(0))> prefetched_columns{};")
        head = f"if (const idx {column} = {first}; {column} + {width} <= {n.count})"
        with w.open(head, [column], fence=True):
            w.write(f"prefetched_columns = mt::words(fetch_columns({column}));")
    with w.open(f"auto fetch = [&](idx {row}, idx {column})", [row, column], fence=True, tail=";"):
        neighbours_of(e, n.variable, width)
        held = columns | e.held({x: TRUE for x in wanted if x not in steady}, width, "fetched")
    total = "double" if anchor.body.dtype is DType.F64 else "float"
    sums = (
        f"const mt::Pack<{total}, {width}>& sums, const decltype(fetch(0, 0))& fetched, bool valid"
    )
    sums += ", char* cell" if by_rows else ""
    head = f"auto epilogue = [&](idx {row}, idx {column}, {sums})"
    with w.open(head, [row, column], fence=True, tail=";") as block:
        neighbours_of(e, n.variable, width)
        if columns:
            w.write("const auto columns = prefetched_columns.whole();")
        block.names.update(held)
        with e.vector(width):
            at = "lane" if width > 1 else "0"
            e.stored_if = "valid"
            e.finish(site, point, f"sums[{at}]", anchor.body.dtype)
    e.cells, e.stored_if = {}, ""
    if by_rows:
        head = f"auto singles = [&](idx {row}, idx {column}, const mt::Pack<{total}, 1>& sums)"
        with w.open(head, [row, column], fence=True, tail=";"):
            e.finish(site, site.point, "sums[0]", anchor.body.dtype)
