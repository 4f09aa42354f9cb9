"""Rewrites products of 8-bit integers and 8-bit floats into forms that the hardware supports, exactly.

Tensor cores, and VNNI on a CPU, multiply 8-bit integers that are contiguous along k, signed or not, and sum in int32; newer tensor cores
multiply float8_e4m3fn too. All others become products of wider floats. A product of two 8-bit integers is at most 2^16, and a float32 sum
of integers is exact up to 2^24, whatever its order. So a sum is split into parts of so many terms, each is converted, and the parts are
added as integers:

    sum over k of i32(a[m, k]) * i32(b[n, k])  =  sum over p of i32(sum over the k of part p of f32(f16(a[m, k])) * f32(f16(b[n, k])))
"""

import math

import msgspec

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.contraction import contraction
from monotile.analysis.masked import masked
from monotile.analysis.words import by_words
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, Tensor, add, cast, idx, mul, substitute
from monotile.ir.program import Compute, Program, Statement
from monotile.targets.target import Target
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body

EXACT = 1 << 24  # up to which float32 represents all integers
LARGEST = {DType.I8: 128, DType.U8: 255}
WORD = 4  # neighbours that are copied at once at least
LEAST_SIDE = 9  # rows and columns: products with fewer are bound by memory, and integer sums read their operands once
LEAST_PART = 64  # terms of a part
MOST_PARTS = 8  # that are added up element by element


def narrow_products(program: Program, target: Target) -> Program:
    """`program` with products of 8-bit numbers as the target takes them."""
    names = Names(program)

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            s = map_bodies(s, go)
            out += _rewritten(s, names, target) if isinstance(s, Compute) else [s]
        return tuple(out)

    return with_body(program, go(program.body))


def _rewritten(c: Compute, names: Names, target: Target) -> list[Statement]:
    """`c`, or the sums that replace it and the statement that computes its result from them."""
    found = contraction(c)
    if found is None:
        return [c]
    sides = [math.prod(c.axes[p].extent for p in side) for side in (found.m, found.n)]
    if floats := _float8_factors(c):
        return [_of_floats(c, floats, target, few=min(sides) < LEAST_SIDE)]
    factors = _factors(c)
    if factors is None or len(c.reduce) != 1 or min(sides) < LEAST_SIDE:
        return [c]
    if target.instructions & {"mma.sync", "vnni"} and all(
        _along(x, c.reduce[0], target) for x in factors
    ):
        return _in_words(c, factors, names)
    return _in_floats(c, factors, names)


def _of_floats(c: Compute, factors: tuple[Expr, Expr], target: Target, *, few: bool) -> Compute:
    """`c` with 8-bit factors, where tensor cores take them, else 16-bit ones. few: rows or columns."""
    direct = "mma.float8" in target.instructions and not few and len(c.reduce) == 1
    if not direct or not all(_along(x, c.reduce[0], target) for x in factors):
        factors = (cast(factors[0], DType.BF16), cast(factors[1], DType.BF16))
    body = Binary("mul", *(cast(x, DType.F32) for x in factors))
    return c if body == c.body else msgspec.structs.replace(c, body=body)


def _float8_factors(c: Compute) -> tuple[Expr, Expr] | None:
    """Two values of float8_e4m3fn if `c` is a sum of their products."""
    if c.combiner != "sum" or not isinstance(c.body, Binary) or c.body.op != "mul":
        return None
    left, right = _float8(c.body.a), _float8(c.body.b)
    return (left, right) if left is not None and right is not None else None


def _float8(e: Expr) -> Expr | None:
    """The 8-bit value of which `e` is only a widening."""
    while isinstance(e, Cast) and e.dtype in (DType.F16, DType.BF16, DType.F32):
        e = e.x
        if e.dtype is DType.F8E4M3:
            return e
    return None


def _along(factor: Expr, k: Axis, target: Target) -> bool:
    """Whether words of `factor` are contiguous along k, or it is computed. Register tiles read bytes in place."""
    if target.has.register_tiles:
        packs = by_words(factor.dtype, target.instructions)  # in any order
        return bool(packs) or (isinstance(factor, Load) and offset(factor).coefficient(k) == 1)
    found = masked(factor)
    return found is None or contiguous_run(offset(found.load), k, WORD) == WORD


def _in_words(c: Compute, factors: tuple[Expr, Expr], names: Names) -> list[Statement]:
    """`c` summed in int32."""
    if c.body.dtype is DType.I32:
        return [c]
    largest = math.prod(LARGEST[x.dtype] for x in factors)
    if c.reduce[0].extent * largest >= 1 << 31:
        return _in_floats(c, factors, names)
    total = Tensor(names.fresh(f"{c.out.name}_words"), c.out.shape, DType.I32)
    body = Binary("mul", *(cast(x, DType.I32) for x in factors))
    return [msgspec.structs.replace(c, out=total, body=body), _added(c, total, 1)]


def _in_floats(c: Compute, factors: tuple[Expr, Expr], names: Names) -> list[Statement]:
    """The sums of the parts of `c` and the statement that adds them up."""
    (k,) = c.reduce
    most = EXACT // math.prod(LARGEST[x.dtype] for x in factors)
    parts = next(p for p in range(1, k.extent + 1) if k.extent % p == 0 and k.extent // p <= most)
    size = k.extent // parts
    if size < min(LEAST_PART, k.extent) or parts > 1024:
        return [c]
    part, inner = Axis("part", parts), Axis(k.name, size)
    at: dict[str, Expr] = {k.name: inner if parts == 1 else add(mul(part, idx(size)), inner)}
    left, right = (cast(cast(substitute(x, at), DType.F16), DType.F32) for x in factors)
    axes = c.axes if parts == 1 else (part, *c.axes)
    shape = tuple(a.extent for a in axes)
    total = Tensor(names.fresh(f"{c.out.name}_floats"), shape, DType.F32)
    sums = Compute(total, axes, (inner,), "sum", Binary("mul", left, right), c.origin)
    return [_renamed(sums), _added(c, total, parts)]


def _factors(c: Compute) -> tuple[Expr, Expr] | None:
    """Two 8-bit integers if `c` is a sum of their products, in integers."""
    match c.body:
        case Binary("mul", Cast(a), Cast(b)) if c.combiner == "sum" and c.body.dtype in (
            DType.I32,
            DType.I64,
        ):
            return (a, b) if {a.dtype, b.dtype} <= LARGEST.keys() else None
        case _:
            return None


def _added(c: Compute, total: Tensor, parts: int) -> Compute:
    """The parts added up, in the integer type of `c`."""
    wide = c.body.dtype

    def value(*part: Expr) -> Expr:
        return cast(Load(total, (*part, *c.axes)), wide)

    if parts > MOST_PARTS:
        r = Axis("r0", parts)
        return msgspec.structs.replace(c, reduce=(r,), body=value(r))
    whole = value() if parts == 1 else value(idx(0))
    for p in range(1, parts):
        whole = Binary("add", whole, value(idx(p)))
    return Compute(c.out, c.axes, (), None, cast(whole, c.out.dtype), c.origin)


def _renamed(c: Compute) -> Compute:
    """With canonical axis names."""
    axes = tuple(Axis(f"i{p}", a.extent) for p, a in enumerate(c.axes))
    at: dict[str, Expr] = {old.name: new for old, new in zip(c.axes, axes, strict=True)}
    return msgspec.structs.replace(c, axes=axes, body=substitute(c.body, at))
