"""Tensors computed from positions alone. The result's type is PyTorch's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Operand, Scalar, element
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.float8 import encoded
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]


def filled(b: Builder, value: Operand) -> Tensor:
    if not isinstance(value, Tensor):
        return b.result(lambda *_: const(value, b.dtype))
    return b.result(lambda *i: encoded(element(value, i, value.dtype), b.dtype))


def _every(value: Scalar) -> Lowering:
    return lambda b, *_, **__: filled(b, value)


def full(b: Builder, size: Sequence[int], fill_value: Operand, **_: object) -> Tensor:
    return filled(b, fill_value)


def full_like(b: Builder, x: Tensor, fill_value: Operand, **_: object) -> Tensor:
    return filled(b, fill_value)


def new_full(
    b: Builder, x: Tensor, size: Sequence[int], fill_value: Operand, **_: object
) -> Tensor:
    return filled(b, fill_value)


def scalar_tensor(b: Builder, value: Operand, **_: object) -> Tensor:
    return filled(b, value)


def _position(b: Builder, start: Scalar, step: Scalar) -> Tensor:
    """start + i * step: exact for integers, in float64 for floats, as PyTorch does it on the CPU."""
    if isinstance(start, int) and isinstance(step, int):
        return b.result(lambda i: s.add(s.mul(i, idx(step)), idx(start)))
    first, by = (cast(idx(x), DType.F64) if isinstance(x, int) else const(x, DType.F64) for x in (start, step))  # fmt: skip
    return b.result(lambda i: s.add(s.mul(cast(i, DType.F64), by), first))


def arange(b: Builder, end: Scalar, **_: object) -> Tensor:
    return _position(b, 0, 1)


def arange_start(b: Builder, start: Scalar, end: Scalar, **_: object) -> Tensor:
    return _position(b, start, 1)


def arange_step(b: Builder, start: Scalar, end: Scalar, step: Scalar = 1, **_: object) -> Tensor:
    return _position(b, start, step)


def iota(b: Builder, length: int, *, start: int, step: int, **_: object) -> Tensor:
    return _position(b, start, step)


def linspace(b: Builder, start: Scalar, end: Scalar, steps: int, **_: object) -> Tensor:
    """Counted from the nearer end, so that both ends are exact."""
    if steps == 1:
        return filled(b, start)
    step = (end - start) / (steps - 1)

    def body(i: Expr) -> Expr:
        near = s.add(s.mul(cast(i, DType.F64), step), float(start))
        back = cast(s.sub(idx(steps - 1), i), DType.F64)
        far = s.sub(const(float(end), DType.F64), s.mul(back, step))
        return s.select(s.lt(i, steps // 2), near, far)

    return b.result(body)


def eye(b: Builder, *_: object, **__: object) -> Tensor:
    one, zero = const(1, b.dtype), const(0, b.dtype)
    return b.result(lambda i, j: s.select(s.eq(i, j), one, zero))


def _triangle(lower: bool) -> Lowering:
    def of(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
        def body(*i: Expr) -> Expr:
            row, column = s.add(i[-2], diagonal), i[-1]
            inside = s.le(column, row) if lower else s.ge(column, row)
            return s.select(inside, element(x, i, x.dtype), const(0, x.dtype))

        return b.result(body)

    return of


def one_hot(b: Builder, x: Tensor, num_classes: int = -1) -> Tensor:
    return b.result(
        lambda *i: cast(s.eq(cast(element(x, i[:-1], x.dtype), DType.I64), i[-1]), DType.I64)
    )


def fill(b: Builder, x: Tensor, value: Operand) -> Tensor:
    return filled(b, value)


def copy(b: Builder, x: Tensor, source: Tensor, *_: object) -> Tensor:
    """`x` with the values of `source`, broadcast and cast."""
    return filled(b, source)


LOWERINGS: Mapping[str, Lowering] = {
    **dict.fromkeys(
        (
            "aten.zeros.default",
            "aten.zeros_like",
            "aten.zero.default",
            "aten.new_zeros",
            # Uninitialised memory may be zero.
            "aten.empty.memory_format",
            "aten.empty_like",
            "aten.empty_strided",
            "aten.empty_permuted",
            "aten.new_empty",
            "aten.new_empty_strided",
        ),
        _every(0),
    ),
    **dict.fromkeys(("aten.ones.default", "aten.ones_like", "aten.new_ones"), _every(1)),
    "aten.full.default": full,
    "aten.full_like": full_like,
    "aten.new_full": new_full,
    "aten.scalar_tensor": scalar_tensor,
    "aten.arange.default": arange,
    "aten.arange.start": arange_start,
    "aten.arange.start_step": arange_step,
    "prims.iota.default": iota,
    "aten.linspace.default": linspace,
    "aten.eye": eye,
    "aten.tril": _triangle(lower=True),
    "aten.triu": _triangle(lower=False),
    "aten.one_hot": one_hot,
    "aten.fill": fill,
    "aten.copy": copy,
}
