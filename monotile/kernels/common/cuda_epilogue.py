"""Epilogues of a product or of attention: lambdas that the device code calls for each vector of sums."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from monotile.analysis.affine import within
from monotile.analysis.unconditional import TRUE, unconditional
from monotile.codegen.base import VALUES
from monotile.codegen.site import Range, Site
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Const, Expr, Load, Select, Tensor, axes_of, substitute
from monotile.ir.program import Compute, Scatter, value_of
from monotile.kernels.common.cuda_operands import neighbours_of
from monotile.kernels.common.cuda_threads import neighbours, placed
from monotile.kernels.common.epilogue import RowResult

KERNEL = {"wgmma": "WGMMA", "mma": "MMA", "fma": "FMA"}


@dataclass(frozen=True, slots=True)
class Parts:
    """Several sums from which the anchor is computed. of: the tensor of which they are elements. names: the tensors that `value`, the
    anchor's expression, loads for them."""

    of: Tensor
    names: tuple[Tensor, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Sums:
    """The input of an epilogue, `width` neighbouring sums of a row at a time. m, n: the ranges of rows and columns. dtype: of the sums.

    by_rows: results that are stored row by row. first_column: text of a thread's first column, if it has the same columns in all
    iterations; operands that depend on these alone are then loaded once. parts: set if the anchor is computed from several sums.
    """

    m: Range
    n: Range
    dtype: DType
    width: int
    by_rows: Sequence[RowResult] = ()
    first_column: str = ""
    parts: Parts | None = None

    @property
    def accumulator(self) -> str:
        """The type of a sum in CUDA C++."""
        return {DType.F64: "double", DType.I32: "int"}.get(self.dtype, "float")

    @property
    def given(self) -> str:
        """The C++ type of an epilogue's input."""
        pack = f"mt::Pack<{self.accumulator}, {self.width}>"
        return pack if self.parts is None else f"mt::Together<{pack}, {len(self.parts.names)}>"


def write_epilogue(e: VectorEmitter, site: Site, sums: Sums) -> None:
    """Writes the lambdas `fetch`, which loads the epilogue's other operands, and `epilogue`, which computes and stores. For results that
    are stored by rows, `epilogue` stores vectors in cells, and `singles` stores one element in place."""
    row, column = sums.m.variable, sums.n.variable
    point = placed(site.point, {column.name: neighbours(column, sums.width)})
    wanted = _other_operands(site, point, sums.parts)
    steady = [
        x
        for x in wanted
        if sums.first_column and x.tensor.name in e.constant and row not in axes_of(x)
    ]
    e.cells = {r.made.out.name: r.cell for r in sums.by_rows}
    columns = _write_columns(e, sums, steady) if steady else {}
    head = f"auto fetch = [&](idx {row.name}, idx {column.name})"
    with e.writer.open(head, [row.name, column.name], fence=True, tail=";"):
        neighbours_of(e, column, sums.width)
        fetched = e.held({x: TRUE for x in wanted if x not in steady}, sums.width, "fetched")
    _write_stores(e, site, point, sums, columns, fetched)
    e.cells = {}
    if sums.by_rows:
        given = f"const mt::Pack<{sums.accumulator}, 1>& sums"
        head = f"auto singles = [&](idx {row.name}, idx {column.name}, {given})"
        with e.writer.open(head, [row.name, column.name], fence=True, tail=";"):
            e.finish(site, site.point, "sums[0]", sums.dtype)


def _other_operands(site: Site, point: Mapping[str, Expr], parts: Parts | None) -> list[Load]:
    """The loads of the followers, and of an anchor with `parts`, that are unconditional or may be executed unconditionally, except those of
    each other's results."""
    own = {s.out.name for s in (site.anchor, *site.followers)}
    own |= {t.name for t in parts.names} if parts else set()
    values = [y for s in site.followers for y in (value_of(s), *_beside_zeros(s))]
    values = [parts.value, *values] if parts else values
    found = dict.fromkeys(x for y in values for x in unconditional(substitute(y, dict(point))))
    return [x for x in found if x.tensor.name not in own]


def _beside_zeros(s: Compute | Scatter) -> Iterator[Load]:
    """The loads of `s` behind the condition that pads its rows with zeros, if they are in range without it."""
    match value_of(s):
        case Select(Binary("lt", Axis() as a, Const()), then, Const(0)) if a == s.axes[-1]:
            for x in unconditional(then):
                if all(within(i, n) for i, n in zip(x.index, x.tensor.shape, strict=True)):
                    yield x
        case _:
            pass


def _write_columns(e: VectorEmitter, sums: Sums, steady: Sequence[Load]) -> dict[Hashable, str]:
    """Loads the operands that all rows share into `prefetched_columns`. Returns their texts, as members of `columns`."""
    column, width, w = sums.n.variable, sums.width, e.writer
    head = f"auto fetch_columns = [&](idx {column.name})"
    with w.open(head, [column.name], fence=True, tail=";"):
        neighbours_of(e, column, width)
        held = e.held(dict.fromkeys(steady, TRUE), width, "columns")
    w.write("mt::Words<decltype(fetch_columns(0))> prefetched_columns{};")
    inside = f"{column.name} + {width} <= {sums.n.count}"
    head = f"if (const idx {column.name} = {sums.first_column}; {inside})"
    with w.open(head, [column.name], fence=True):
        w.write(f"prefetched_columns = mt::words(fetch_columns({column.name}));")
    return held


def _write_stores(
    e: VectorEmitter,
    site: Site,
    point: Mapping[str, Expr],
    sums: Sums,
    columns: Mapping[Hashable, str],
    fetched: Mapping[Hashable, str],
) -> None:
    """Writes the lambda `epilogue`. columns, fetched: texts of loaded operands."""
    row, column, width = sums.m.variable.name, sums.n.variable, sums.width
    given = f"const {sums.given}& sums, const decltype(fetch(0, 0))& fetched, bool valid"
    given += ", char* cell" if sums.by_rows else ""
    head = f"auto epilogue = [&](idx {row}, idx {column.name}, {given})"
    with e.writer.open(head, [row, column.name], fence=True, tail=";") as block:
        neighbours_of(e, column, width)
        if columns:
            e.writer.write("const auto columns = prefetched_columns.whole();")
        block.names.update({**columns, **fetched})
        with e.vector(width):
            at = "lane" if width > 1 else "0"
            e.stored_if = "valid"
            text, dtype = f"sums[{at}]", sums.dtype
            if sums.parts is not None:
                _hold_parts(e, sums.parts, at, dtype)
                text, dtype = e.body(sums.parts.value, point), sums.parts.value.dtype
            e.finish(site, point, text, dtype)
    e.stored_if = ""


def _hold_parts(e: VectorEmitter, parts: Parts, at: str, dtype: DType) -> None:
    """Within the current block, uses the sums at `at`, of type `dtype`, as the loads of the anchor's value."""
    for number, t in enumerate(parts.names):
        text = e.as_stored(parts.of, f"sums.part[{number}][{at}]", dtype, used=True)
        variable = e.writer.fresh("x")
        e.writer.write(f"const {VALUES[t.dtype]} {variable} = {bare(text)};")
        e.writer.define(variable)
        e.hold(t.name, variable)
