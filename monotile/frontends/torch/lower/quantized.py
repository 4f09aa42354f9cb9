"""Products of quantised matrices: integers summed as integers, 8-bit floats with scales, weights of 8 and 4 bits with scales."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from monotile.frontends.builder import Builder, Unsupported, element, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.int4_layouts import of_cpu, of_pairs, of_tiles
from monotile.frontends.torch.lower.scalar import floordiv
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, idx

Lowering = Callable[..., Any]
_LARGEST = {DType.F8E4M3: 448.0, DType.F8E5M2: 57344.0}


def integer_product(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """x · y of integers, with each product and the sum in int32."""

    def body(i: Expr, j: Expr, k: Expr) -> Expr:
        return s.mul(cast(load(x, [i, k]), b.dtype), cast(load(y, [k, j]), b.dtype))

    return b.result(body, reduce=(x.shape[1],), combiner="sum")


def with_dtype(b: Builder, op: object, dtype: torch.dtype, *args: Any) -> Tensor:
    """The higher-order operator `out_dtype`: `op`, its arguments cast to `dtype` first."""
    if str(op) != "aten.mm.default" or not all(a.dtype.is_int for a in args):
        raise Unsupported(f"{op} in {dtype}")
    return integer_product(b, *args)


def scaled_product(
    b: Builder,
    x: Tensor,
    y: Tensor,
    scale_x: Tensor,
    scale_y: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: object = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """(x · y) * scale_x * scale_y + bias of 8-bit floats, with one scale each, or one per row of `x` and column of `y`. Rounded once.

    An 8-bit result that would be too large is the largest number, as in PyTorch. Sums are in float32, whatever `use_fast_accum` says.
    """
    m, n = b.shape
    if scale_result is not None:
        raise Unsupported("scale_result, which PyTorch uses on the CPU alone")
    scales = ((scale_x, ((m, 1), (m,))), (scale_y, ((1, n), (n,))))
    if not all(_count(t) == 1 or t.shape in shapes for t, shapes in scales):
        raise Unsupported("scales other than of a tensor, a row or a column")
    if any(t.dtype is not DType.F32 for t, _ in scales):
        raise Unsupported(f"scales in {scale_x.dtype} and {scale_y.dtype}")

    def body(i: Expr, j: Expr, k: Expr) -> Expr:
        return s.mul(_half(x, i, k), _half(y, k, j))

    k = x.shape[1]
    product = b.emit((m, n), DType.F32, body, reduce=(k,), combiner="sum", part="product")

    def scaled(i: Expr, j: Expr) -> Expr:
        v = s.mul(load(product, (i, j)), s.mul(_scale(scale_x, i), _scale(scale_y, j)))
        if bias is not None:
            v = s.add(v, element(bias, (i, j), DType.F32))
        most = _LARGEST.get(b.dtype)
        return v if most is None else s.minimum(s.maximum(v, -most), most)

    return b.result(scaled)


def _count(t: Tensor) -> int:
    return t.nbytes // t.dtype.itemsize


def _scale(t: Tensor, i: Expr) -> Expr:
    """The only scale, or the one at `i`."""
    if _count(t) == 1:
        return load(t, (idx(0),) * len(t.shape))
    return load(t, tuple(idx(0) if n == 1 else i for n in t.shape))


def _half(t: Tensor, *index: Expr) -> Expr:
    """An 8-bit float as a type that represents it exactly and that tensor cores multiply."""
    return cast(cast(load(t, index), DType.BF16), DType.F32)


def int8_weight(b: Builder, x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """(x · weightᵀ) * scales, with one scale per row of `weight`. Rounded once."""

    def body(i: Expr, j: Expr, k: Expr) -> Expr:
        w = cast(load(weight, [j, k]), x.dtype)
        return s.mul(cast(load(x, [i, k]), wide), cast(w, wide))

    wide = x.dtype.compute
    k = x.shape[1]
    product = b.emit(b.shape, wide, body, reduce=(k,), combiner="sum", part="product")
    return b.result(lambda i, j: s.mul(load(product, (i, j)), cast(load(scales, [j]), wide)))


class _Int4(NamedTuple):
    """A 4-bit weight format. code: the code, 0 … 15, at n and k of a packed weight with so many rows. rounded: each weight is rounded to
    the type of the other factor, as for tensor cores."""

    code: Callable[[Tensor, int, Expr, Expr], Expr]
    rounded: bool = True

    def product(self, b: Builder, x: Tensor, weight: Tensor, parts: Callable[..., tuple[Expr, Expr]]) -> Tensor:  # fmt: skip
        """x times the weight, (code - 8) * scale + zero. parts: scale and zero at n and k."""
        wide, n = x.dtype.compute, b.shape[-1]

        def decoded(j: Expr, k: Expr) -> Expr:
            scale, zero = (cast(v, wide) for v in parts(j, k))
            centred = cast(s.sub(self.code(weight, n, j, k), 8), wide)
            v = s.add(s.mul(centred, scale), zero)
            return cast(cast(v, x.dtype), wide) if self.rounded else v

        def body(i: Expr, j: Expr, k: Expr) -> Expr:
            return s.mul(cast(load(x, [i, k]), wide), decoded(j, k))

        return b.result(body, reduce=(x.shape[1],), combiner="sum")


def int4_tiles(b: Builder, x: Tensor, weight: Tensor, group: int, scales: Tensor) -> Tensor:
    return _in_pairs(_Int4(of_tiles), b, x, weight, group, scales)


def int4_on_cpu(b: Builder, x: Tensor, weight: Tensor, group: int, scales: Tensor) -> Tensor:
    return _in_pairs(_Int4(of_cpu, rounded=False), b, x, weight, group, scales)


def _in_pairs(
    how: _Int4, b: Builder, x: Tensor, weight: Tensor, group: int, scales: Tensor
) -> Tensor:
    """scales: [k / group, n, 2], scale and zero."""

    def parts(j: Expr, k: Expr) -> tuple[Expr, Expr]:
        g = floordiv(k, idx(group))
        return load(scales, [g, j, idx(0)]), load(scales, [g, j, idx(1)])

    return how.product(b, x, weight, parts)


def int4_rows(b: Builder, x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """scale, zero: [groups, n]. These libraries call the value of code 0 the zero."""
    if len(x.shape) != 2 or len(weight.shape) != 2:
        raise Unsupported("operands other than matrices")
    group = x.shape[1] // scale.shape[0]

    def parts(j: Expr, k: Expr) -> tuple[Expr, Expr]:
        g = floordiv(k, idx(group))
        return load(scale, [g, j]), load(zero, [g, j])

    return _Int4(of_pairs).product(b, x, weight, parts)


LOWERINGS: Mapping[str, Lowering] = {
    "aten._int_mm": integer_product,
    "out_dtype": with_dtype,
    "aten._scaled_mm": scaled_product,
    "aten._weight_int8pack_mm": int8_weight,
    "aten._weight_int4pack_mm": int4_tiles,
    "aten._weight_int4pack_mm_for_cpu": int4_on_cpu,
    "mslk.bf16i4bf16_rowwise": int4_rows,
    "fbgemm.bf16i4bf16_rowwise": int4_rows,
}
