"""Tables of Fourier transforms along dynamic dimensions: computed in the call, from the roots of unity of its size."""

from collections.abc import Callable, Sequence

from monotile.frontends.builder import Builder, Unsupported, load
from monotile.frontends.torch.complex.pair import Pair
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

_TURN = 6.283185307179586
_MOST = 4096  # two tables of at most 64 MB each in float32


def dynamic_table(
    b: Builder, n: int, sign: int, shape: Sequence[int], power: float, mirrored: bool, dtype: DType
) -> Pair:
    """n ** power exp(sign 2 pi i j k / n), [j, k], of cosines and of sines; in `mirrored` ones twice the elements that also stand for their
    mirror images.

    power: 0, -1/2 or -1. Raises Unsupported if n may be over 4096.
    """
    if int(n) > _MOST:
        raise Unsupported(f"of a size that the call decides, up to {int(n)}: transforms of such sizes have at most {_MOST} elements, as by dynamic_shapes, or a fixed length (pass n)")  # fmt: skip
    size = cast(idx(n), DType.F64)
    scale = const(1.0, DType.F64)
    if power:
        scale = s.div(1.0, size if power == -1 else s.call("sqrt", size))

    def root(of: str, turns: float) -> Callable[[Expr], Expr]:
        def body(m: Expr) -> Expr:
            found = s.mul(s.call(of, s.div(s.mul(cast(m, DType.F64), _TURN), size)), turns)
            small = s.lt(s.call("abs", found), 1e-14)  # those that are 0 are exactly that
            return cast(s.mul(s.select(small, 0.0, found), scale), dtype)

        return body

    def table(of: str, turns: float) -> Tensor:
        roots = b.emit((n,), dtype, root(of, turns), part=of)

        def body(j: Expr, k: Expr) -> Expr:
            found = load(roots, [s.mod(s.mul(j, k), idx(n))])
            if not mirrored:
                return found
            alone = s.either(s.eq(j, 0), s.eq(s.mul(j, 2), idx(n)))
            return s.mul(found, s.select(alone, const(1.0, dtype), const(2.0, dtype)))

        return b.emit(shape, dtype, body, part=f"{of}_table")

    return Pair(table("cos", 1.0), table("sin", float(sign)))
