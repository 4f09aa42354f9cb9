"""Padding: one Compute that reads the operand inside its bounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Scalar, Unsupported, load
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.expr import Expr, Tensor, const

Lowering = Callable[..., Any]


def _pairs(rank: int, pad: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) of each dimension; PyTorch lists them from the last dimension on."""
    given = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(given)) + given[::-1]


def padded(
    b: Builder,
    x: Tensor,
    pairs: Sequence[tuple[int, int]],
    value: Scalar,
    part: str = "",
    step: Sequence[int] | None = None,
    shape: Sequence[int] | None = None,
) -> Tensor:
    """`x` with `value` around it (negative padding crops), and between its elements if `step` > 1.

    pairs: (before, after) of each dimension; a size is tested unless its upper bound is 0. shape: of the result, if it is known better than
    as a sum.
    """
    steps = step or [1] * len(pairs)
    wide = [
        n if q == 1 else (n - 1) * q + 1 if n else 0 for n, q in zip(x.shape, steps, strict=True)
    ]
    shape = shape or [w + p + q for w, (p, q) in zip(wide, pairs, strict=True)]

    def body(*i: Expr) -> Expr:
        tests: list[Expr] = []
        index: list[Expr] = []
        for e, w, (before, after), q in zip(i, wide, pairs, steps, strict=True):
            k = s.add(e, -before) if int(before) < 0 else s.sub(e, before)
            if int(before) > 0:
                tests.append(s.ge(e, before))
            if int(after) > 0:
                tests.append(s.lt(k, w))
            if q > 1:
                tests.append(s.eq(s.mod(k, q), 0))
            index.append(s.floordiv(k, q))
        return s.select(s.both(*tests), load(x, index), const(value, x.dtype))

    return b.emit(shape, x.dtype, body, part=part)


def constant_pad(b: Builder, x: Tensor, pad: Sequence[int], value: Scalar = 0) -> Tensor:
    return padded(b, x, _pairs(len(x.shape), pad), value, shape=b.shape)


def _reflected(k: Expr, n: int) -> Expr:
    """0 ... n-1 reflected at both ends, which are not repeated."""
    k = s.call("abs", k)
    return s.sub(n - 1, s.call("abs", s.sub(n - 1, k)))


def _replicated(k: Expr, n: int) -> Expr:
    return s.minimum(s.maximum(k, 0), n - 1)


def _bordered(fold: Callable[[Expr, int], Expr]) -> Lowering:
    """Padding by elements of the tensor itself; `fold` maps a position into 0 ... n-1."""

    def lower(b: Builder, x: Tensor, pad: Sequence[int]) -> Tensor:
        pairs = _pairs(len(x.shape), pad)

        def body(*i: Expr) -> Expr:
            return load(
                x,
                [
                    e if (p, q) == (0, 0) else fold(s.sub(e, p), n)
                    for e, n, (p, q) in zip(i, x.shape, pairs, strict=True)
                ],
            )

        return b.result(body)

    return lower


def _circular(b: Builder, x: Tensor, pad: Sequence[int]) -> Tensor:
    """Negative padding crops first; the rest is repeated."""
    pairs = _pairs(len(x.shape), pad)

    def body(*i: Expr) -> Expr:
        at: list[Expr] = []
        for e, n, (p, q) in zip(i, x.shape, pairs, strict=True):
            begin, end = max(-p, 0), n - max(-q, 0)
            around = s.mod(s.sub(e, max(p, 0)), end - begin) if (p, q) != (0, 0) else e
            at.append(s.add(around, begin) if begin else around)
        return load(x, at)

    return b.result(body)


_BORDERS: Mapping[str, Lowering] = {
    "reflect": _bordered(_reflected),
    "replicate": _bordered(_replicated),
    "circular": _circular,
}


def pad(
    b: Builder, x: Tensor, pad: Sequence[int], mode: str = "constant", value: Scalar | None = None
) -> Tensor:
    if mode == "constant":
        return constant_pad(b, x, pad, 0 if value is None else value)
    if mode not in _BORDERS:
        raise Unsupported(f"mode={mode!r}")
    return _BORDERS[mode](b, x, pad)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.pad": pad,
    "aten.constant_pad_nd": constant_pad,
    **{f"aten.reflection_pad{n}d": _BORDERS["reflect"] for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d": _BORDERS["replicate"] for n in (1, 2, 3)},
    "aten._pad_circular": _BORDERS["circular"],
}
