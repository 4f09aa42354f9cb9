"""Products of complex tensors: each a few products of their components, which are contractions like any other."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from monotile.frontends.builder import Builder, Unsupported, element, load, raised
from monotile.frontends.torch.complex.pair import Number, Pair
from monotile.frontends.torch.lower import matmul
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.convolution import LOWERINGS
from monotile.ir.expr import Expr, Tensor

Lowering = Callable[..., Number]
Terms = list[tuple[int, Tensor]]  # signs and tensors


def product(
    b: Builder, operands: Sequence[Number], real: Callable[[Sequence[Tensor]], Tensor]
) -> Pair:
    """A product, linear in each operand. real: emits the product of real tensors of the operands' shapes."""
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


def _convolution(of: Callable[..., Tensor], dims: int) -> Lowering:
    """of: emits the convolution of real tensors, over the last `dims` dimensions."""

    def convolution(b: Builder, x: Number, weight: Number, bias: Number | None = None, *rest: object) -> Pair:  # fmt: skip
        node, origin, results = b.node, b.origin, b.results
        count = itertools.count()

        def real(f: Sequence[Tensor]) -> Tensor:
            b.begin(f"{node}_{next(count)}", origin, results)
            found = of(b, *f, None, *rest)
            b.begin(node, origin, results)
            return found

        found = product(b, (x, weight), real)
        if bias is None:
            return found

        def plus(p: Tensor, q: Tensor, part: str) -> Tensor:
            channel = len(p.shape) - dims - 1
            return b.emit(p.shape, p.dtype, lambda *i: s.add(load(p, i), load(q, [i[channel]])), part=f"{part}_plus")  # fmt: skip

        added = bias if isinstance(bias, Pair) else (bias,)
        kept = found[len(added) :]
        return Pair(*map(plus, found, added, Pair._fields), *kept)

    return convolution


_CONVOLUTIONS = {
    f"{kind}{n}d": _convolution(LOWERINGS[f"aten.{kind}{n}d"], n)
    for kind in ("conv", "conv_transpose")
    for n in (1, 2, 3)
}
PRODUCTS: Mapping[str, Lowering] = {
    **_CONVOLUTIONS,
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul"), _matmul),
    "vdot": _vdot,
    "outer": _outer,
    "ger": _outer,
    "einsum": _einsum,
    "linear": _linear,
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _added),
}
