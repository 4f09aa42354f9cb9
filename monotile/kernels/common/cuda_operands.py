"""The operands of a contraction, or of attention: functors that compute the address of a vector, or the vector, and their `mt::Side`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monotile.analysis.affine import Affine
from monotile.analysis.index_ranges import index_ranges
from monotile.analysis.masked import Masked, choice
from monotile.analysis.rounding import unrounded
from monotile.analysis.unconditional import TRUE
from monotile.codegen.packs import lane_of
from monotile.codegen.site import Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, axes_of, idx, loads, substitute
from monotile.kernels.common.cuda_config import SIDE, config
from monotile.kernels.common.cuda_threads import neighbours, placed
from monotile.kernels.common.operand import Operand

ELEMENT: Mapping[DType, str] = {
    DType.F16: "mt::f16",
    DType.BF16: "mt::bf16",
    DType.F32: "float",
    DType.F64: "double",
    DType.I8: "mt::i8",
    DType.U8: "mt::u8",
    DType.F8E4M3: "mt::f8e4m3",
}


@dataclass(frozen=True, slots=True)
class Side:
    """The compile-time properties of an operand: `mt::SideConfig`, which documents the fields, and the element type."""

    element: DType
    operand: Operand
    check_rows: bool
    prefetched_chunks: int = 0
    task_rows: int = 0
    evict_first: bool = False
    rounded: bool = False

    @property
    def k_major(self) -> bool:
        return self.operand.major != "mn"

    @property
    def kind(self) -> str:
        """The element type in CUDA C++."""
        return ELEMENT[self.element]

    @property
    def text(self) -> str:
        """The type `mt::Side`."""
        sparse = self.operand.copy == "sparse"
        copy = "ASYNC" if sparse else self.operand.copy.upper()
        fields = config(
            "SideConfig", SIDE, k_major=self.k_major, copy=f"mt::Copy::{copy}", vector=self.operand.vector,
            check_rows=self.check_rows, prefetched_chunks=self.prefetched_chunks, task_rows=self.task_rows,
            evict_first=self.evict_first, rounded=self.rounded, sparse=sparse,
        )  # fmt: skip
        return f"mt::Side<{self.kind}, {fields}>"


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand: `factor`, with rows along `row`, and k along `axes`, flattened. name: of its functor."""

    name: str
    factor: Expr
    row: Axis
    axes: Sequence[Axis]

    @property
    def k(self) -> Axis:
        return Axis("k", math.prod(a.extent for a in self.axes))


def write_side(e: VectorEmitter, site: Site, matrix: Matrix, side: Side) -> str:
    """Writes the functor. Returns the text of its `mt::Side`."""
    copied = choice(matrix.factor) if side.operand.copy != "element" else None
    if copied:
        point = dict(site.point) | unflatten(matrix.k, matrix.axes)
        write_addresses(e, point, matrix, copied, side)
    elif side.operand.copy == "direct":
        _write_decoding(e, site, matrix, side)
    else:
        _write_values(e, site, matrix, side)
    return side.text


def write_addresses(
    e: VectorEmitter, point: dict[str, Expr], matrix: Matrix, copied: Sequence[Masked], side: Side
) -> None:
    """Writes the functor of an operand that is read in place: with constant strides, or at addresses from a lambda. point: the axes, in
    terms of row and k. copied: the loads among which conditions select the factor."""
    row, k, kind = matrix.row, matrix.k, side.kind
    guarded = copied[0].cond != TRUE
    steps = None if guarded else e.steps(copied[0].load, point, (row, k))
    if steps is not None:
        start = {row.name: idx(0), k.name: idx(0)}
        text = e.address_of(copied[0].load, placed(point, start))
        numbers = ", ".join(str(s) for s in steps)
        e.writer.write(
            f"auto {matrix.name} = mt::linear<{kind}, {numbers}>((const {kind}*)({text}));"
        )
        return
    given = f"mt::Source<{kind}>" if guarded else f"const {kind}*"
    flags = ", ".join(str(x).lower() for x in (guarded, any(map(_looked_up, copied))))
    head = (
        f"auto {matrix.name} = mt::addressed<{kind}, {flags}>([&](idx {row.name}, idx k) -> {given}"
    )
    with e.writer.open(head, [row.name, "k"], tail=");"):
        *others, last = (_source(e, x, point, kind) for x in copied)
        for at, there in others:
            found = e.writer.fresh("there")
            e.writer.write(f"const bool {found} = {there};")
            last = f"{found} ? {at} : {last[0]}", f"{found} || {last[1]}"
        e.writer.write(f"return {{{last[0]}, {last[1]}}};" if guarded else f"return {last[0]};")


def _source(e: VectorEmitter, x: Masked, point: dict[str, Expr], kind: str) -> tuple[str, str]:
    """Texts of a load's address, and of its condition. Indices of gathers are loaded only under the condition."""
    if x.cond == TRUE or not _looked_up(x):
        at = f"(const {kind}*)({e.address_of(x.load, point, summed=True)})"
        return at, "" if x.cond == TRUE else f"({_at_once(e, x.cond, point)})"
    w, at, there = e.writer, e.writer.fresh("at"), e.writer.fresh("there")
    start = Load(x.load.tensor, tuple(idx(0) for _ in x.load.index))
    w.write(f"const bool {there} = {_at_once(e, x.cond, point)};")
    w.write(f"auto {at} = (const {kind}*)({e.address_of(start, point)});")
    with w.open(f"if ({there})", fence=True):
        w.write(f"{at} = (const {kind}*)({e.address_of(x.load, point, summed=True)});")
    return at, there


def _looked_up(x: Masked) -> bool:
    """Whether the load is a gather."""
    return any(loads(i) for i in x.load.index)


def _at_once(e: VectorEmitter, cond: Expr, point: Mapping[str, Expr]) -> str:
    """Text of `cond` without branches; two bounds of a value are one comparison."""
    bounds, rest = index_ranges(substitute(cond, dict(point)))
    texts = [e.root(term) for term in rest]
    for b in bounds:
        above = bare(e.total(b.value + Affine((), -b.low)))
        texts.append(f"mt::within<idx>({above}, {b.high - b.low + 1})")
    return f"({' & '.join(texts)}) != 0"


def _write_values(e: VectorEmitter, site: Site, matrix: Matrix, side: Side) -> None:
    """Writes the functor of an operand that is computed: a lambda that returns vectors of elements."""
    row, kind, width = matrix.row, side.kind, side.operand.vector
    head = f"auto {matrix.name} = mt::evaluated<{kind}, {width}>([&](idx {row.name}, idx k)"
    with e.writer.open(head, [row.name, "k"], tail=");"):
        _write_vector(e, matrix, side, _point_of_vector(e, site, matrix, side))


def _point_of_vector(e: VectorEmitter, site: Site, matrix: Matrix, side: Side) -> dict[str, Expr]:
    """Declares the variables of a lane's position. Returns the axes there."""
    row, k, width = matrix.row, matrix.k, side.operand.vector
    column = neighbours_of(e, k, width) if side.k_major else k
    line = row if side.k_major else neighbours_of(e, row, width)
    return placed(site.point, {row.name: line}) | unflatten(column, matrix.axes)


def _write_vector(e: VectorEmitter, matrix: Matrix, side: Side, point: Mapping[str, Expr]) -> None:
    kind, width = side.kind, side.operand.vector
    e.writer.write(f"mt::Pack<{kind}, {width}> values;")
    with e.vector(width):
        text = bare(e.body(unrounded(matrix.factor), point))
        e.writer.write(f"values[{'lane' if width > 1 else 0}] = mt::cast<{kind}>({text});")
    e.writer.write("return values;")


def _write_decoding(e: VectorEmitter, site: Site, matrix: Matrix, side: Side) -> None:
    """Writes the functor of an operand that is decoded at its use, long after its loads were issued: packs of codes, and the values that
    all lanes share."""
    name, row, width, w = matrix.name, matrix.row.name, side.operand.vector, e.writer
    with w.open(f"auto {name}_codes = [&](idx {row}, idx k)", [row, "k"], tail=";"):
        point = _point_of_vector(e, site, matrix, side)
        read = dict.fromkeys(loads(substitute(unrounded(matrix.factor), point)))
        codes = e.held(dict.fromkeys(read, TRUE), width, "codes")
    shared = [x for x in read if x not in codes and lane_of(width) not in axes_of(x)]
    with w.open(f"auto {name}_sides = [&](idx {row}, idx k)", [row, "k"], tail=";"):
        _point_of_vector(e, site, matrix, side)
        texts = ", ".join(f"(float)({e.root(x)})" for x in shared)
        w.write(f"return mt::Pack<float, {max(1, len(shared))}>{{{{{texts or '0.0f'}}}}};")
    given = f"const decltype({name}_codes(0, 0))& codes, const decltype({name}_sides(0, 0))& sides"
    head = f"auto {name} = mt::coded({name}_codes, {name}_sides, [&](idx {row}, idx k, {given})"
    with w.open(head, [row, "k"], tail=");") as block:
        point = _point_of_vector(e, site, matrix, side)
        block.names.update(codes)
        block.names.update({x: f"sides[{i}]" for i, x in enumerate(shared)})
        _write_vector(e, matrix, side, point)


def neighbours_of(e: VectorEmitter, first: Axis, width: int) -> Expr:
    """Declares the variables that `neighbours` of the variable `first` needs. Returns these neighbours."""
    if width > 1:
        vector = f"{first.name}_vector"
        e.writer.write(f"__builtin_assume({first.name} % {width} == 0);")
        e.writer.write(f"const idx {vector} = (uint32_t){first.name} / {width}u;")
        e.writer.define(vector)
    return neighbours(first, width)
