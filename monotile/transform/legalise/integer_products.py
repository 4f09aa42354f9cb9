"""Products of 8-bit integers, summed in integers, as products of floats, which tensor cores and register tiles compute. They are exact.

A product of two 8-bit integers is at most 2^16, and a float32 sum of integers is exact up to 2^24, whatever its order. So a sum is cut in parts of
so many terms, each is converted, and the parts are added as integers:

    sum over k of i32(a[m, k]) * i32(b[n, k])  =  sum over p of i32(sum over the k of part p of f32(f16(a[m, k])) * f32(f16(b[n, k])))
"""

import math

import msgspec

from monotile.analysis.contraction import contraction
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, Tensor, add, cast, idx, mul, substitute
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body

EXACT = 1 << 24  # up to which float32 has all integers
LARGEST = {DType.I8: 128, DType.U8: 255}
LEAST_SIDE = 9  # rows and columns: fewer are read once by integer sums, which wait for memory
LEAST_PART = 64  # terms of a part
MOST_PARTS = 8  # that are added up element by element


def integer_products(program: Program) -> Program:
    """`program` with such products as floats."""
    names = Names(program)

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            s = map_bodies(s, go)
            out += _in_floats(s, names) if isinstance(s, Compute) else [s]
        return tuple(out)

    return with_body(program, go(program.body))


def _in_floats(c: Compute, names: Names) -> list[Statement]:
    """`c`, or the sums of its parts and what adds these up."""
    found, factors = contraction(c), _factors(c)
    if found is None or factors is None or len(c.reduce) != 1:
        return [c]
    sides = [math.prod(c.axes[p].extent for p in side) for side in (found.m, found.n)]
    (k,) = c.reduce
    most = EXACT // math.prod(LARGEST[x.dtype] for x in factors)
    parts = next(p for p in range(1, k.extent + 1) if k.extent % p == 0 and k.extent // p <= most)
    size = k.extent // parts
    if min(sides) < LEAST_SIDE or size < min(LEAST_PART, k.extent) or parts > 1024:
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
    """Two 8-bit integers of which `c` is a sum of products, in integers."""
    match c.body:
        case Binary("mul", Cast(a), Cast(b)) if c.combiner == "sum" and c.body.dtype in (
            DType.I32,
            DType.I64,
        ):
            return (a, b) if {a.dtype, b.dtype} <= LARGEST.keys() else None
        case _:
            return None


def _added(c: Compute, total: Tensor, parts: int) -> Compute:
    """The parts together, in the integers of `c`."""
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
    """With axes named as those of all statements are."""
    axes = tuple(Axis(f"i{p}", a.extent) for p, a in enumerate(c.axes))
    at: dict[str, Expr] = {old.name: new for old, new in zip(c.axes, axes, strict=True)}
    return msgspec.structs.replace(c, axes=axes, body=substitute(c.body, at))
