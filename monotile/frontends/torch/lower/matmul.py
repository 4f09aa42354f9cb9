"""Contractions: sums of products, in at least float32."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from monotile.frontends.builder import (
    Builder,
    Unsupported,
    broadcast,
    broadcast_shape,
    element,
    load,
    raised,
)
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.promotion import promote
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast

Lowering = Callable[..., Any]


def linear(b: Builder, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias over the last dimension of `x`; `weight` may be a vector."""
    k = x.shape[-1]
    columns = len(weight.shape) == 2

    def body(*axes: Expr) -> Expr:
        *i, r = axes
        lead = i[:-1] if columns else i
        right = raised(weight, [i[-1], r] if columns else [r])
        return s.mul(raised(x, [*lead, r]), right)

    if bias is None:
        return b.result(body, reduce=(k,), combiner="sum")
    # Rounded once, after the bias, as PyTorch's kernels do.
    wide = b.dtype.compute
    product = b.emit(b.shape, wide, body, reduce=(k,), combiner="sum", part="product")
    return b.result(lambda *i: s.add(element(product, i, wide), element(bias, i, wide)))


def product(b: Builder, x: Tensor, y: Tensor, dtype: DType | None = None, part: str = "") -> Tensor:
    """`torch.matmul` for every rank: vectors are dotted, leading dimensions broadcast."""
    rows, columns = len(x.shape) > 1, len(y.shape) > 1
    lead = broadcast_shape(x.shape[:-2], y.shape[:-2])
    shape = lead + (x.shape[-2:-1] if rows else ()) + (y.shape[-1:] if columns else ())

    def body(*axes: Expr) -> Expr:
        *i, r = axes
        outer = i[: len(lead)]
        m = [i[len(lead)]] if rows else []
        n = [i[-1]] if columns else []
        left = [*broadcast(x.shape[:-2], outer), *m, r]
        right = [*broadcast(y.shape[:-2], outer), r, *n]
        return s.mul(raised(x, left), raised(y, right))

    return b.emit(shape, dtype or b.dtype, body, reduce=(x.shape[-1],), combiner="sum", part=part)


def matmul(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    return product(b, x, y)


def added_product(
    b: Builder,
    base: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    beta: int | float = 1,
    alpha: int | float = 1,
) -> Tensor:
    """beta * base + alpha * x · y (addmm, addmv, baddbmm); with beta 0, `base` is not read."""
    wide = b.dtype.compute
    found = product(b, x, y, wide, part="product")

    def body(*i: Expr) -> Expr:
        v = element(found, i, wide)
        scaled = v if alpha == 1 else s.mul(v, alpha)
        if beta == 0:
            return scaled
        offset = element(base, i, wide)
        return s.add(offset if beta == 1 else s.mul(offset, beta), scaled)

    return b.result(body)


def addbmm(
    b: Builder,
    base: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    beta: int | float = 1,
    alpha: int | float = 1,
) -> Tensor:
    """beta * base + alpha * the sum over the batch of x · y."""
    batch, _, k = x.shape
    wide = b.dtype.compute
    found = b.emit(
        b.shape,
        wide,
        lambda m, n, r, q: s.mul(raised(x, [r, m, q]), raised(y, [r, q, n])),
        reduce=(batch, k),
        combiner="sum",
        part="product",
    )

    def body(*i: Expr) -> Expr:
        v = load(found, i) if alpha == 1 else s.mul(load(found, i), alpha)
        return v if beta == 0 else s.add(s.mul(element(base, i, wide), beta), v)

    return b.result(body)


def outer(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    wide = b.dtype.compute
    return b.result(lambda i, j: s.mul(cast(load(x, [i]), wide), cast(load(y, [j]), wide)))


def bilinear(
    b: Builder, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """sum over p, q of x[p] * weight[o, p, q] * y[q], as two contractions."""
    features, left, right = weight.shape
    lead = x.shape[:-1]
    wide = b.dtype.compute
    half = b.emit(
        (*lead, features, right),
        wide,
        lambda *a: s.mul(raised(x, [*a[:-3], a[-1]]), raised(weight, [a[-3], a[-1], a[-2]])),
        reduce=(left,),
        combiner="sum",
        part="left",
    )
    found = b.emit(
        (*lead, features),
        wide if bias is not None else b.dtype,
        lambda *a: s.mul(load(half, a), raised(y, [*a[:-2], a[-1]])),
        reduce=(right,),
        combiner="sum",
        part="product" if bias is not None else "",
    )
    if bias is None:
        return found
    return b.result(lambda *i: s.add(load(found, i), raised(bias, i[-1:])))


# einsum


def _parse(equation: str, operands: Sequence[Tensor]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand and of the result; "..." becomes the labels "0", "1", ... from the right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise Unsupported(f"equation {equation!r} for {len(operands)} operands")
    longest = 0
    labels: list[list[str]] = []
    for term, t in zip(terms, operands, strict=True):
        before, dots, after = term.partition("...")
        hidden = len(t.shape) - len(before) - len(after) if dots else 0
        longest = max(longest, hidden)
        labels.append([*before, *(str(k) for k in reversed(range(hidden))), *after])
    ellipsis = [str(k) for k in reversed(range(longest))]
    if arrow:
        before, dots, after = right.partition("...")
        return labels, [*before, *(ellipsis if dots else []), *after]
    flat = [x for term in labels for x in term]
    return labels, [*ellipsis, *sorted({x for x in flat if not x.isdigit() and flat.count(x) == 1})]


def einsum(b: Builder, equation: str, tensors: Sequence[Tensor], **_: object) -> Tensor:
    """One or two operands as one contraction; more are contracted from left to right."""
    labels, result = _parse(equation, tensors)
    extent: dict[str, int] = {}
    for term, t in zip(labels, tensors, strict=True):
        for x, n in zip(term, t.shape, strict=True):
            if extent.get(x, 1) == 1:
                extent[x] = n
    current, held = tensors[0], labels[0]
    rest = list(zip(tensors[1:], labels[1:], strict=True))
    if not rest:
        return _contract(b, [current], [held], result, extent, b.dtype, "")
    for k, (t, term) in enumerate(rest):
        later = {x for _, other in rest[k + 1 :] for x in other} | set(result)
        last = k == len(rest) - 1
        union = list(dict.fromkeys([*held, *term]))
        keep = result if last else [x for x in union if x in later]
        dtype = b.dtype if last else b.dtype.compute
        current = _contract(
            b, [current, t], [held, term], keep, extent, dtype, "" if last else f"partial{k}"
        )
        held = keep
    return current


def _contract(
    b: Builder,
    operands: Sequence[Tensor],
    labels: Sequence[Sequence[str]],
    result: Sequence[str],
    extent: Mapping[str, int],
    dtype: DType,
    part: str,
) -> Tensor:
    gone = [x for x in dict.fromkeys(x for term in labels for x in term) if x not in result]
    # Without a sum PyTorch takes operands of different types.
    common = reduce(promote, (t.dtype.compute for t in operands))

    def body(*axes: Expr) -> Expr:
        at = dict(zip([*result, *gone], axes, strict=True))
        factors = [
            cast(raised(t, broadcast(t.shape, [at[x] for x in term])), common)
            for t, term in zip(operands, labels, strict=True)
        ]
        times = s.both if common is DType.BOOL else s.mul
        return factors[0] if len(factors) == 1 else times(*factors)

    return b.emit(
        [extent[x] for x in result],
        dtype,
        body,
        reduce=[extent[x] for x in gone],
        combiner="sum" if gone else None,
        part=part,
    )


LOWERINGS: Mapping[str, Lowering] = {
    "aten.linear": linear,
    "aten.matmul": matmul,
    "aten.mm": matmul,
    "aten.bmm": matmul,
    "aten.mv": matmul,
    "aten.dot": matmul,
    "aten.vdot": matmul,
    "aten.linalg_matmul": matmul,
    "aten.addmm": added_product,
    "aten.addmv": added_product,
    "aten.baddbmm": added_product,
    "aten.addbmm": addbmm,
    "aten.outer": outer,
    "aten.ger": outer,
    "aten.bilinear": bilinear,
    "aten.einsum": einsum,
}
