"""Attention over caches of which a part is live, as Programs, and values for them."""

import numpy as np
from numpy.typing import NDArray

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    add,
    cast,
    const,
    idx,
    mul,
)
from monotile.ir.program import Program, compute

Array = NDArray[np.generic]
F32, I64 = DType.F32, DType.I64
FORMS = ("plain", "window", "padded", "capped", "raw", "added", "lowest")
LOWEST = -3.4028234663852886e38


def attention(
    form: str, batch: int = 2, rows: int = 1, keys: int = 40, size: int = 8, dtype: DType = F32
) -> Program:
    """softmax(mask(q k)) v. Row r sees keys up to position[r]. form: "window": from position[r] - 10 on; "padded": from start[b] on; "capped": by
    tanh; "raw": softmax without a least total; "added": the mask is 0 or -inf, in a tensor of its own, and added; "lowest": the same with the
    lowest float instead of -inf, and a window."""
    q, k, v = (
        Tensor(n, (batch, m, size), dtype) for n, m in (("q", rows), ("k", keys), ("v", keys))
    )
    position, start = Tensor("position", (rows,), I64), Tensor("start", (batch,), I64)
    whole = (batch, rows, keys)

    def seen(b: Axis, r: Axis, n: Axis) -> Expr:
        at = Load(position, (r,))
        found: Expr = Binary("le", n, at)
        if form in ("window", "lowest"):
            found = Binary("and", found, Binary("gt", n, add(at, idx(-10))))
        if form == "padded":
            found = Binary("and", found, Binary("ge", n, Load(start, (b,))))
        return found

    def weighted(b: Axis, r: Axis, n: Axis, f: Axis) -> Expr:
        return mul(cast(Load(q, (b, r, f)), F32), cast(Load(k, (b, n, f)), F32))

    low = Const("-inf", F32)
    lowest = const(LOWEST, F32) if form == "lowest" else low
    products = compute(Tensor("products", whole, F32), weighted, reduce=(size,), combiner="sum")
    mask = compute(
        Tensor("mask", whole, F32), lambda b, r, n: Select(seen(b, r, n), const(0.0, F32), lowest)
    )

    def scored(b: Axis, r: Axis, n: Axis) -> Expr:
        x: Expr = mul(Load(products.out, (b, r, n)), const(0.5, F32))
        if form in ("capped", "lowest"):
            x = mul(Unary("tanh", x), const(3.0, F32))
        if form in ("added", "lowest"):
            return add(x, Load(mask.out, (b, r, n)))
        return Select(seen(b, r, n), x, low)

    scores = compute(Tensor("scores", whole, F32), scored)

    def largest(b: Axis, r: Axis, n: Axis) -> Expr:
        x = Load(scores.out, (b, r, n))
        return x if form in ("raw", "lowest") else Binary("max", x, const(-3e38, F32))

    top = compute(Tensor("top", (batch, rows), F32), largest, reduce=(keys,), combiner="max")
    powers = compute(
        Tensor("powers", whole, F32),
        lambda b, r, n: Unary("exp", Binary("sub", Load(scores.out, (b, r, n)), Load(top.out, (b, r)))),
    )  # fmt: skip
    total = compute(
        Tensor("total", (batch, rows), F32),
        lambda b, r, n: Load(powers.out, (b, r, n)),
        reduce=(keys,),
        combiner="sum",
    )

    def share(b: Axis, r: Axis, n: Axis) -> Expr:
        below: Expr = Load(total.out, (b, r))
        below = below if form in ("raw", "lowest") else Binary("max", below, const(1.0, F32))
        return cast(Binary("div", Load(powers.out, (b, r, n)), below), dtype)

    shares = compute(Tensor("shares", whole, dtype), share)
    result = compute(
        Tensor("result", (batch, rows, size), dtype),
        lambda b, r, f, n: mul(cast(Load(shares.out, (b, r, n)), F32), cast(Load(v, (b, n, f)), F32)),
        reduce=(keys,),
        combiner="sum",
    )  # fmt: skip
    masks = (mask,) if form in ("added", "lowest") else ()
    given = (q, k, v, position, *((start,) if form == "padded" else ()))
    body = (*masks, products, scores, top, powers, total, shares, result)
    return Program(given, (), body, (result.out,))


def values(program: Program, position: int, start: int = 0, seed: int = 0) -> dict[str, Array]:
    """Rows look from `position` on, one further each; what none of them sees is NaN."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for t in program.inputs:
        if t.name == "position":
            out[t.name] = position + np.arange(t.shape[0], dtype=np.int64)
        elif t.name == "start":
            out[t.name] = np.arange(t.shape[0], dtype=np.int64) + start
        else:
            out[t.name] = rng.standard_normal(t.shape).astype(t.dtype.numpy)
    return out
