"""Complex tensors inside a graph, as pairs of real tensors.

This covers rotary embeddings written with complex numbers: a table by `polar`, `view_as_complex`, a product, `view_as_real`.
Operators that move or add elements apply their real lowering to both parts; the others are defined here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from monotile.frontends.builder import Builder, Type, Unsupported, element, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.registry import find
from monotile.frontends.torch.types import dtype_of, to_numpy
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, const, idx


class Pair(NamedTuple):
    """A complex tensor: two real ones of its shape."""

    real: Tensor
    imag: Tensor


# Operators that act on both parts separately.
_APART = frozenset(
    "view reshape _unsafe_view slice select unsqueeze squeeze permute transpose t expand repeat flip roll index"
    " index_select cat stack clone alias detach contiguous lift_fresh sum neg".split()
)
_PARTS = {torch.complex64: DType.F32, torch.complex128: DType.F64}
Part = Callable[[tuple[Expr, ...]], Expr]


def is_complex(node: fx.Node) -> bool:
    """Whether `node` reads or returns a complex tensor."""
    values = (n.meta.get("val") for n in (node, *node.all_input_nodes))
    return any(isinstance(v, torch.Tensor) and v.dtype in _PARTS for v in values)


def constant_pair(b: Builder, x: torch.Tensor) -> Pair:
    """A complex constant."""
    return Pair(b.constant(to_numpy(x.real)), b.constant(to_numpy(x.imag)))


def lower_complex(
    b: Builder, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Pair | Tensor:
    """Lowers `node`, which has complex operands or results.

    Raises Unsupported if it has no complex lowering.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise Unsupported("of complex numbers")
    name = str(node.target).split(".")[1].removesuffix("_copy")
    whole = Type(tuple(value.shape), _PARTS.get(value.dtype) or dtype_of(value.dtype))
    b.begin(node.name, origin(node.stack_trace), (whole,))
    special = _SPECIAL.get(name)
    if special is not None:
        found = special(b, *args, **kwargs)
        if isinstance(found, Pair) is not (value.dtype in _PARTS):
            raise Unsupported("from complex numbers to real ones")
        return found
    lowering = find(node.target)
    if name not in _APART or lowering is None or value.dtype not in _PARTS:
        raise Unsupported("of complex numbers")
    if name in ("cat", "stack") and not all(isinstance(x, Pair) for x in args[0]):
        raise Unsupported("of complex numbers and real ones")
    parts: list[Tensor] = []
    for k, part in enumerate(Pair._fields):
        b.begin(f"{node.name}_{part}", b.origin, (whole,))
        found = lowering(
            b, *(_part(x, k) for x in args), **{n: _part(x, k) for n, x in kwargs.items()}
        )
        assert isinstance(found, Tensor)
        parts.append(found)
    return Pair(*parts)


def _part(x: Any, k: int) -> Any:
    if isinstance(x, Pair):
        return x[k]
    return [_part(y, k) for y in x] if isinstance(x, list | tuple) else x


def _of(x: Any, dtype: DType) -> tuple[Part, Part | None]:
    """The parts of an operand's element; a real operand has no imaginary part."""
    if isinstance(x, Pair):
        return lambda i: element(x.real, i, dtype), lambda i: element(x.imag, i, dtype)
    if isinstance(x, complex):
        return lambda _: const(x.real, dtype), lambda _: const(x.imag, dtype)
    return lambda i: element(x, i, dtype), None


def _pair(b: Builder, real: Part, imag: Part) -> Pair:
    parts = zip(Pair._fields, (real, imag), strict=True)
    return Pair(*(b.emit(b.shape, b.dtype, lambda *i, f=f: f(i), part=name) for name, f in parts))


def _zero(b: Builder) -> Part:
    return lambda _: const(0.0, b.dtype)


def _mul(b: Builder, x: Any, y: Any) -> Pair:
    (a, p), (c, q) = _of(x, b.dtype), _of(y, b.dtype)
    if p is None or q is None:
        scale, (real, imag) = (a, (c, q)) if p is None else (c, (a, p))
        other = imag or _zero(b)
        return _pair(b, lambda i: s.mul(real(i), scale(i)), lambda i: s.mul(other(i), scale(i)))
    return _pair(
        b,
        lambda i: s.sub(s.mul(a(i), c(i)), s.mul(p(i), q(i))),
        lambda i: s.add(s.mul(a(i), q(i)), s.mul(p(i), c(i))),
    )


def _div(b: Builder, x: Any, y: Any) -> Pair:
    (a, p), (c, q) = _of(x, b.dtype), _of(y, b.dtype)
    if q is not None or p is None:
        raise Unsupported("by complex numbers")
    return _pair(b, lambda i: s.div(a(i), c(i)), lambda i: s.div(p(i), c(i)))


def _add(b: Builder, x: Any, y: Any, *, alpha: float = 1, sign: int = 1) -> Pair:
    (a, p), (c, q) = _of(x, b.dtype), _of(y, b.dtype)
    if isinstance(alpha, complex):
        raise Unsupported("times a complex number")
    left, right, scale = p or _zero(b), q or _zero(b), const(float(sign * alpha), b.dtype)
    return _pair(
        b,
        lambda i: s.add(a(i), s.mul(c(i), scale)),
        lambda i: s.add(left(i), s.mul(right(i), scale)),
    )


def _sub(b: Builder, x: Any, y: Any, *, alpha: float = 1) -> Pair:
    return _add(b, x, y, alpha=alpha, sign=-1)


def _polar(b: Builder, length: Tensor, angle: Tensor) -> Pair:
    def times(f: str) -> Part:
        return lambda i: s.mul(element(length, i, b.dtype), s.call(f, element(angle, i, b.dtype)))

    return _pair(b, times("cos"), times("sin"))


def _complex(b: Builder, real: Tensor, imag: Tensor) -> Pair:
    return _pair(b, lambda i: element(real, i, b.dtype), lambda i: element(imag, i, b.dtype))


def _conj(b: Builder, x: Pair) -> Pair:
    return Pair(x.real, b.emit(b.shape, b.dtype, lambda *i: s.neg(load(x.imag, i)), part="imag"))


def _exp(b: Builder, x: Pair) -> Pair:
    def times(f: str) -> Part:
        return lambda i: s.mul(s.exp(load(x.real, i)), s.call(f, load(x.imag, i)))

    return _pair(b, times("cos"), times("sin"))


def _view_as_complex(b: Builder, x: Tensor) -> Pair:
    return _pair(b, lambda i: load(x, (*i, idx(0))), lambda i: load(x, (*i, idx(1))))


def _view_as_real(b: Builder, x: Pair) -> Tensor:
    return b.result(lambda *i: s.select(s.eq(i[-1], 0), load(x.real, i[:-1]), load(x.imag, i[:-1])))


def _abs(b: Builder, x: Pair) -> Tensor:
    return b.result(lambda *i: s.op("hypot", load(x.real, i), load(x.imag, i)))


def _angle(b: Builder, x: Pair) -> Tensor:
    return b.result(lambda *i: s.op("atan2", load(x.imag, i), load(x.real, i)))


def _to_copy(b: Builder, x: Pair | Tensor, **_: object) -> Pair | Tensor:
    if isinstance(x, Tensor):
        return _pair(b, lambda i: element(x, i, b.dtype), _zero(b))
    if b.dtype is not x.real.dtype:
        raise Unsupported("to another type")
    return x


_SPECIAL: Mapping[str, Callable[..., Pair | Tensor]] = {
    "mul": _mul,
    "div": _div,
    "add": _add,
    "sub": _sub,
    "polar": _polar,
    "complex": _complex,
    "_conj": _conj,
    "conj_physical": _conj,
    "exp": _exp,
    "view_as_complex": _view_as_complex,
    "view_as_real": _view_as_real,
    "real": lambda b, x: x.real,
    "imag": lambda b, x: x.imag,
    "abs": _abs,
    "angle": _angle,
    "_to_copy": _to_copy,
    "to": _to_copy,
}
