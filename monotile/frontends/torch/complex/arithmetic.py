"""Element-wise operators on complex numbers."""

from collections.abc import Callable, Mapping
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, element, load, raised
from monotile.frontends.torch.complex.pair import (
    Number,
    Pair,
    Part,
    interleaved,
    pair,
    parts_of,
    zero,
)
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.reductions import vector_norm
from monotile.ir.expr import Expr, Tensor, const

Lowering = Callable[..., Number]
Operand = Number | complex


def _mul(b: Builder, x: Operand, y: Operand) -> Pair:
    (a, p), (c, q) = parts_of(x, b.dtype.compute), parts_of(y, b.dtype.compute)
    if p is None or q is None:
        scale, (real, imag) = (a, (c, q)) if p is None else (c, (a, p))
        other = imag or zero(b)
        return pair(b, lambda i: s.mul(real(i), scale(i)), lambda i: s.mul(other(i), scale(i)))
    return pair(
        b,
        lambda i: s.sub(s.mul(a(i), c(i)), s.mul(p(i), q(i))),
        lambda i: s.add(s.mul(a(i), q(i)), s.mul(p(i), c(i))),
    )


def _div(b: Builder, x: Operand, y: Operand) -> Pair:
    (a, p), (c, q) = parts_of(x, b.dtype.compute), parts_of(y, b.dtype.compute)
    top = p or zero(b)
    if q is None:
        return pair(b, lambda i: s.div(a(i), c(i)), lambda i: s.div(top(i), c(i)))

    def part(is_real: bool) -> Part:
        """Division by the larger component of the divisor first, to avoid overflow (R. L. Smith, 1962)."""

        def of(i: tuple[Expr, ...]) -> Expr:
            m, n = (a(i), top(i)) if is_real else (top(i), s.neg(a(i)))
            wide = s.ge(s.call("abs", c(i)), s.call("abs", q(i)))
            low, high = s.div(q(i), c(i)), s.div(c(i), q(i))
            return s.select(
                wide,
                s.div(s.add(m, s.mul(n, low)), s.add(c(i), s.mul(q(i), low))),
                s.div(s.add(s.mul(m, high), n), s.add(s.mul(c(i), high), q(i))),
            )

        return of

    return pair(b, part(True), part(False))


def _add(b: Builder, x: Operand, y: Operand, *, alpha: float = 1, sign: int = 1) -> Pair:
    (a, p), (c, q) = parts_of(x, b.dtype.compute), parts_of(y, b.dtype.compute)
    if isinstance(alpha, complex):
        raise Unsupported("times a complex number")
    left, right, scale = p or zero(b), q or zero(b), const(float(sign * alpha), b.dtype.compute)
    return pair(
        b,
        lambda i: s.add(a(i), s.mul(c(i), scale)),
        lambda i: s.add(left(i), s.mul(right(i), scale)),
    )


def _sub(b: Builder, x: Operand, y: Operand, *, alpha: float = 1) -> Pair:
    return _add(b, x, y, alpha=alpha, sign=-1)


def _rsub(b: Builder, x: Operand, y: Operand, alpha: float = 1) -> Pair:
    return _add(b, y, x, alpha=alpha, sign=-1)


def _turned(b: Builder, length: Part, angle: Part) -> Pair:
    """The number with a given modulus and angle."""

    def times(f: str) -> Part:
        return lambda i: s.mul(length(i), s.call(f, angle(i)))

    return pair(b, times("cos"), times("sin"))


def _polar(b: Builder, length: Tensor, angle: Tensor) -> Pair:
    wide = b.dtype.compute
    return _turned(b, lambda i: element(length, i, wide), lambda i: element(angle, i, wide))


def _complex(b: Builder, real: Tensor, imag: Tensor) -> Pair:
    return pair(b, lambda i: element(real, i, b.dtype), lambda i: element(imag, i, b.dtype))


def _conj(b: Builder, x: Pair) -> Pair:
    return Pair(x.real, b.emit(b.shape, b.dtype, lambda *i: s.neg(raised(x.imag, i)), part="imag"))


def _exp(b: Builder, x: Pair) -> Pair:
    return _turned(b, lambda i: s.exp(raised(x.real, i)), lambda i: raised(x.imag, i))


def _crossed(f: str, g: str, sign: int, turn: bool) -> Lowering:
    """f(a) h(p) + i sign g(a) k(p) of a number a + i p: h and k are cosh and sinh, or if `turn`ed cos and sin."""
    even, odd = ("cos", "sin") if turn else ("cosh", "sinh")

    def lower(b: Builder, x: Pair) -> Pair:
        def of(u: str, v: str, sign: int) -> Part:
            def value(i: tuple[Expr, ...]) -> Expr:
                found = s.mul(s.call(u, raised(x.real, i)), s.call(v, raised(x.imag, i)))
                return found if sign > 0 else s.neg(found)

            return value

        return pair(b, of(f, even, 1), of(g, odd, sign))

    return lower


def _tanh(b: Builder, x: Pair) -> Pair:
    """With t = tanh(a), u = tan(p): (t (1 + u^2) + i u / cosh(a)^2) / (1 + t^2 u^2), which has no cancellation."""

    def of(is_real: bool) -> Part:
        def value(i: tuple[Expr, ...]) -> Expr:
            a = raised(x.real, i)
            t, u, wide = s.tanh(a), s.call("tan", raised(x.imag, i)), s.call("cosh", a)
            square, one = s.mul(u, u), const(1.0, a.dtype)
            top = s.mul(t, s.add(one, square)) if is_real else s.div(s.div(u, wide), wide)
            return s.div(top, s.add(one, s.mul(s.mul(t, t), square)))

        return value

    return pair(b, of(True), of(False))


def _log(b: Builder, x: Pair) -> Pair:
    return pair(b, lambda i: s.call("log", _length(x, i)), lambda i: _direction(x, i))


def _pow(b: Builder, x: Operand, y: Operand) -> Pair:
    if not isinstance(x, Pair) or not isinstance(y, int | float):
        raise Unsupported("of complex numbers, other than to a real power")
    if y == 2:
        return _mul(b, x, x)
    power = const(float(y), b.dtype.compute)
    return _turned(
        b,
        lambda i: s.op("pow", _length(x, i), power),
        lambda i: s.mul(_direction(x, i), power),
    )


def _sgn(b: Builder, x: Pair) -> Pair:
    def of(part: Tensor) -> Part:
        def value(i: tuple[Expr, ...]) -> Expr:
            length = _length(x, i)
            return s.select(
                s.eq(length, 0.0), const(0.0, length.dtype), s.div(raised(part, i), length)
            )

        return value

    return pair(b, of(x.real), of(x.imag))


def _view_as_real(b: Builder, x: Pair) -> Tensor:
    return b.result(lambda *i: s.select(s.eq(i[-1], 0), load(x.real, i[:-1]), load(x.imag, i[:-1])))


def _length(x: Pair, i: tuple[Expr, ...]) -> Expr:
    return s.op("hypot", raised(x.real, i), raised(x.imag, i))


def _direction(x: Pair, i: tuple[Expr, ...]) -> Expr:
    return s.op("atan2", raised(x.imag, i), raised(x.real, i))


def _abs(b: Builder, x: Pair) -> Tensor:
    return b.result(lambda *i: _length(x, i))


def _vector_norm(b: Builder, x: Pair, *args: Any, **named: Any) -> Tensor:
    lengths = b.emit(x.real.shape, x.real.dtype, lambda *i: _length(x, i), part="lengths")
    return vector_norm(b, lengths, *args, **named)


def _angle(b: Builder, x: Pair) -> Tensor:
    return b.result(lambda *i: _direction(x, i))


def _to_copy(b: Builder, x: Number, *_: object, **__: object) -> Pair:
    a, p = parts_of(x, b.dtype.compute)
    if isinstance(x, Pair) and b.dtype is x.real.dtype:
        return x
    return pair(b, a, p or zero(b))


ARITHMETIC: Mapping[str, Lowering] = {
    "mul": _mul,
    "div": _div,
    "true_divide": _div,
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "polar": _polar,
    "complex": _complex,
    "_conj": _conj,
    "conj_physical": _conj,
    "_conj_physical": _conj,
    "resolve_conj": lambda b, x: x,
    "exp": _exp,
    "log": _log,
    "sin": _crossed("sin", "cos", 1, turn=False),
    "cos": _crossed("cos", "sin", -1, turn=False),
    "sinh": _crossed("sinh", "cosh", 1, turn=True),
    "cosh": _crossed("cosh", "sinh", 1, turn=True),
    "tanh": _tanh,
    "pow": _pow,
    "square": lambda b, x: _mul(b, x, x),
    "sqrt": lambda b, x: _pow(b, x, 0.5),
    "reciprocal": lambda b, x: _div(b, 1, x),
    "sgn": _sgn,
    "view_as_complex": interleaved,
    "view_as_real": _view_as_real,
    "real": lambda b, x: x.real,
    "imag": lambda b, x: x.imag,
    "abs": _abs,
    "linalg_vector_norm": _vector_norm,
    "angle": _angle,
    "_to": _to_copy,  # "_to_copy": a copy is what it is a copy of
    "to": _to_copy,
    "type_as": _to_copy,
    "convert_element_type": _to_copy,
}
