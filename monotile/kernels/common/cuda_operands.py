"""The operands of a contraction, or of attention: functors that say where a vector of one lies, or compute it, and their
`mt::Side`."""

import math
from collections.abc import Mapping, Sequence

from monotile.analysis.affine import Affine
from monotile.analysis.index_ranges import index_ranges
from monotile.analysis.masked import Masked, masked
from monotile.analysis.unconditional import TRUE
from monotile.codegen.site import Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, idx, substitute
from monotile.kernels.common.cuda_config import SIDE, config
from monotile.kernels.common.cuda_threads import neighbours, placed
from monotile.kernels.common.operand import Operand

ELEMENT: Mapping[DType, str] = {
    DType.F16: "mt::f16",
    DType.BF16: "mt::bf16",
    DType.F32: "float",
    DType.F64: "double",
}


def write_side(
    e: VectorEmitter,
    site: Site,
    what: tuple[Expr, Operand, DType],
    row: Axis,
    axes: Sequence[Axis],
    name: str,
    *,
    checked: bool,
    rows: int = 0,
    ahead: int = 0,
    once: bool = False,
) -> str:
    """Writes the functor `name` of (factor, how it is read, element type on chip); gives the text of its `mt::Side`.

    row: the variable along its rows. axes: those along k. checked: whether a block may reach over the last row. rows: that a task has, if fewer than a block.
    ahead: chunks that are asked for before the hand-off. once: it leaves the last-level cache first.
    """
    factor, operand, element = what
    k = Axis("k", math.prod(a.extent for a in axes))
    along_k = operand.major != "mn"
    width, kind = operand.vector, ELEMENT[element]
    if operand.copy == "async":
        copied = masked(factor)
        assert copied is not None
        write_addresses(e, dict(site.point) | unflatten(k, axes), copied, row, k, name, kind)
        copy = "ASYNC"
    else:
        _values(e, site, factor, row, k, axes, name, (element, width), along_k=along_k)
        copy = "ELEMENT"
    return side_text(
        element,
        copy,
        width,
        along_k=along_k,
        checked=checked,
        ahead=ahead,
        rows=rows,
        once=once,
    )


def side_text(
    element: DType,
    copy: str,
    width: int,
    *,
    along_k: bool,
    checked: bool,
    ahead: int = 0,
    rows: int = 0,
    once: bool = False,
) -> str:
    """Text of an operand's `mt::Side`."""
    fields = config(
        "SideConfig", SIDE, k_major=along_k, copy=f"mt::Copy::{copy}", vector=width, check_rows=checked,
        prefetched_chunks=ahead, task_rows=rows, evict_first=once,
    )  # fmt: skip
    return f"mt::Side<{ELEMENT[element]}, {fields}>"


def write_addresses(
    e: VectorEmitter,
    point: dict[str, Expr],
    factor: Masked,
    row: Axis,
    k: Axis,
    name: str,
    kind: str,
) -> None:
    """The operand `name`, read where it lies: in even steps, or wherever a lambda says. point: what the axes are, of `row` and `k`."""
    guarded = factor.cond != TRUE
    steps = None if guarded else e.steps(factor.load, point, (row, k))
    if steps is not None:
        start = {row.name: idx(0), k.name: idx(0)}
        text = e.address_of(factor.load, placed(point, start))
        numbers = ", ".join(str(s) for s in steps)
        e.writer.write(f"auto {name} = mt::linear<{kind}, {numbers}>((const {kind}*)({text}));")
        return
    kinds, given = (f"{kind}, true", f"mt::Source<{kind}>") if guarded else (kind, f"const {kind}*")
    head = f"auto {name} = mt::addressed<{kinds}>([&](idx {row.name}, idx k) -> {given}"
    with e.writer.open(head, [row.name, "k"], tail=");"):
        at = f"(const {kind}*)({e.address_of(factor.load, point, summed=True)})"
        there = _at_once(e, factor.cond, point) if guarded else ""
        e.writer.write(f"return {{{at}, {there}}};" if guarded else f"return {at};")


def _at_once(e: VectorEmitter, cond: Expr, point: Mapping[str, Expr]) -> str:
    """Text of `cond` without branches; two bounds of a value are one comparison."""
    bounds, rest = index_ranges(substitute(cond, dict(point)))
    texts = [e.root(term) for term in rest]
    for b in bounds:
        above = bare(e.total(b.value + Affine((), -b.low)))
        texts.append(f"mt::within<idx>({above}, {b.high - b.low + 1})")
    return f"({' & '.join(texts)}) != 0"


def _values(
    e: VectorEmitter,
    site: Site,
    factor: Expr,
    row: Axis,
    k: Axis,
    axes: Sequence[Axis],
    name: str,
    element: tuple[DType, int],
    *,
    along_k: bool,
) -> None:
    """The operand `name`, computed: a lambda that gives vectors of (type, width) `element`."""
    dtype, width = element
    kind = ELEMENT[dtype]
    head = f"auto {name} = mt::evaluated<{kind}, {width}>([&](idx {row.name}, idx k)"
    with e.writer.open(head, [row.name, "k"], tail=");"):
        column = neighbours_of(e, k, width) if along_k else k
        line = row if along_k else neighbours_of(e, row, width)
        point = placed(site.point, {row.name: line}) | unflatten(column, axes)
        e.writer.write(f"mt::Pack<{kind}, {width}> values;")
        with e.vector(width):
            text = bare(e.body(factor, point))
            e.writer.write(f"values[{'lane' if width > 1 else 0}] = mt::cast<{kind}>({text});")
        e.writer.write("return values;")


def neighbours_of(e: VectorEmitter, first: Axis, width: int) -> Expr:
    """Writes what `neighbours` of the variable `first` are made of; gives these."""
    if width > 1:
        vector = f"{first.name}_vector"
        e.writer.write(f"__builtin_assume({first.name} % {width} == 0);")
        e.writer.write(f"const idx {vector} = (uint32_t){first.name} / {width}u;")
        e.writer.define(vector)
    return neighbours(first, width)
