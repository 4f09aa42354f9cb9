"""Products of complex tensors: each a few products of their parts, which are contractions like any other."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from monotile.frontends.builder import Builder, Unsupported, element, raised
from monotile.frontends.torch.complex.pair import Number, Pair
from monotile.frontends.torch.lower import matmul
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.expr import Expr, Tensor

Lowering = Callable[..., Number]
Terms = list[tuple[int, Tensor]]  # signs and tensors


def product(
    b: Builder, operands: Sequence[Number], real: Callable[[Sequence[Tensor]], Tensor]
) -> Pair:
    """A product, linear in each operand. real: emits that of real tensors of the operands' shapes."""
    sums: tuple[Terms, Terms] = ([], [])
    for which in itertools.product(*((0, 1) if isinstance(x, Pair) else (0,) for x in operands)):
        term = real(
            [x[k] if isinstance(x, Pair) else x for x, k in zip(operands, which, strict=True)]
        )
        count = sum(which)  # factors of i
        sums[count % 2].append((-1 if count & 2 else 1, term))
    return Pair(*(_sum(b, t, part) for t, part in zip(sums, Pair._fields, strict=True)))


def _sum(b: Builder, terms: Terms, part: str) -> Tensor:
    (_, first), *rest = terms
    if not rest:
        return first

    def body(*i: Expr) -> Expr:
        total: Expr = raised(first, i)
        for sign, t in rest:
            total = (s.add if sign > 0 else s.sub)(total, raised(t, i))
        return total

    return b.emit(first.shape, first.dtype, body, part=part)


def conjugate(b: Builder, x: Number) -> Number:
    if isinstance(x, Tensor):
        return x
    minus = b.emit(x.shape, x.imag.dtype, lambda *i: s.neg(raised(x.imag, i)), part="conj")
    return Pair(x.real, minus)


def _matmul(b: Builder, x: Number, y: Number) -> Pair:
    return product(b, (x, y), lambda f: matmul.product(b, f[0], f[1], part="product"))


def _vdot(b: Builder, x: Number, y: Number) -> Pair:
    return _matmul(b, conjugate(b, x), y)


def _outer(b: Builder, x: Number, y: Number) -> Pair:
    return product(b, (x, y), lambda f: matmul.outer(b, *f))


def _einsum(b: Builder, equation: str, tensors: Sequence[Number], **_: object) -> Pair:
    return product(b, tensors, lambda f: matmul.einsum(b, equation, f))


def _linear(b: Builder, x: Number, weight: Number, bias: Number | None = None) -> Pair:
    found = product(b, (x, weight), lambda f: matmul.linear(b, *f))
    return found if bias is None else _plus(b, found, bias)


def _added(
    b: Builder, base: Number, x: Number, y: Number, *, beta: complex = 1, alpha: complex = 1
) -> Pair:
    if beta != 1 or alpha != 1:
        raise Unsupported("of complex numbers with alpha or beta")
    return _plus(b, _matmul(b, x, y), base)


def _plus(b: Builder, x: Pair, y: Number) -> Pair:
    parts = zip(x, y if isinstance(y, Pair) else (y, None), Pair._fields, strict=True)
    return Pair(
        *(
            p if q is None else b.emit(
                b.shape, b.dtype, lambda *i, p=p, q=q: s.add(raised(p, i), element(q, i, b.dtype.compute)), part=name
            )
            for p, q, name in parts
        )
    )  # fmt: skip


PRODUCTS: Mapping[str, Lowering] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul"), _matmul),
    "vdot": _vdot,
    "outer": _outer,
    "ger": _outer,
    "einsum": _einsum,
    "linear": _linear,
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _added),
}
