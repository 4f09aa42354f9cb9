"""Activation functions."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, elementwise, raised, wrap
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.expr import Expr, Tensor, add, const, idx

Lowering = Callable[..., Any]


def _of(f: Callable[[Expr], Expr]) -> Lowering:
    return lambda b, x: elementwise(b, (x,), f, b.dtype.compute)


def gelu(b: Builder, x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function of x: by erf, or by the tanh approximation."""

    def exact(v: Expr) -> Expr:
        return s.mul(s.mul(v, 0.5), s.add(1, s.call("erf", s.mul(v, math.sqrt(0.5)))))

    def approximation(v: Expr) -> Expr:
        cubic = s.add(v, s.mul(s.mul(s.mul(v, v), v), 0.044715))
        return s.mul(s.mul(v, 0.5), s.add(1, s.tanh(s.mul(cubic, math.sqrt(2 / math.pi)))))

    f = {"none": exact, "tanh": approximation}.get(approximate)
    if f is None:
        raise Unsupported(f"approximate={approximate!r}")
    return elementwise(b, (x,), f, b.dtype.compute)


def leaky_relu(b: Builder, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return elementwise(
        b, (x,), lambda v: s.select(s.gt(v, 0), v, s.mul(v, negative_slope)), b.dtype.compute
    )


def rrelu(
    b: Builder,
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *_: object,
) -> Tensor:
    """The inference form: the slope is the mean of the slopes that training draws from."""
    if training:
        raise Unsupported("training")
    return leaky_relu(b, x, (lower + upper) / 2)


def prelu(b: Builder, x: Tensor, weight: Tensor) -> Tensor:
    """One slope, or one per channel (dimension 1)."""

    def body(*i: Expr) -> Expr:
        v = raised(x, i)
        several = weight.shape != () and weight.size > 1
        at = [i[1] if several else idx(0)] if weight.shape else []
        return s.select(s.gt(v, 0), v, s.mul(raised(weight, at), v))

    return b.result(body)


def elu(
    b: Builder, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Tensor:
    def f(v: Expr) -> Expr:
        below = s.mul(s.call("expm1", s.mul(v, input_scale)), alpha * scale)
        return s.select(s.gt(v, 0), s.mul(v, scale), below)

    return elementwise(b, (x,), f, b.dtype.compute)


def selu(b: Builder, x: Tensor) -> Tensor:
    return elu(b, x, 1.6732632423543772, 1.0507009873554805)


def celu(b: Builder, x: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(b, x, alpha, 1.0, 1.0 / alpha)


def softplus(b: Builder, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    def f(v: Expr) -> Expr:
        scaled = s.mul(v, beta)
        curve = s.div(s.call("log1p", s.exp(scaled)), beta)
        return s.select(s.gt(scaled, threshold), v, curve)

    return elementwise(b, (x,), f, b.dtype.compute)


def hardtanh(b: Builder, x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return elementwise(
        b, (x,), lambda v: s.minimum(s.maximum(v, min_val), max_val), b.dtype.compute
    )


def relu6(b: Builder, x: Tensor) -> Tensor:
    return hardtanh(b, x, 0, 6)


def _hardsigmoid(v: Expr) -> Expr:
    return s.div(s.minimum(s.maximum(s.add(v, 3), 0), 6), 6)


def _log_sigmoid(v: Expr) -> Expr:
    tail = s.call("log1p", s.exp(s.neg(s.call("abs", v))))
    return s.sub(s.minimum(v, 0), tail)


def log_sigmoid(b: Builder, x: Tensor) -> Tensor | tuple[Tensor | None, ...]:
    out = b.result(lambda *i: _log_sigmoid(raised(x, i)))
    return out if len(b.results) == 1 else (out, None)


def threshold(b: Builder, x: Tensor, threshold: float, value: float) -> Tensor:
    return elementwise(b, (x,), lambda v: s.select(s.le(v, threshold), value, v), b.dtype.compute)


def hardshrink(b: Builder, x: Tensor, lambd: float = 0.5) -> Tensor:
    def f(v: Expr) -> Expr:
        inside = s.both(s.ge(v, -lambd), s.le(v, lambd))
        return s.select(inside, const(0, v.dtype), v)

    return elementwise(b, (x,), f, b.dtype.compute)


def softshrink(b: Builder, x: Tensor, lambd: float = 0.5) -> Tensor:
    def f(v: Expr) -> Expr:
        low = s.select(s.lt(v, -lambd), s.add(v, lambd), s.mul(v, 0))
        return s.select(s.gt(v, lambd), s.sub(v, lambd), low)

    return elementwise(b, (x,), f, b.dtype.compute)


def logit(b: Builder, x: Tensor, eps: float | None = None) -> Tensor:
    def f(v: Expr) -> Expr:
        p = v if eps is None else s.minimum(s.maximum(v, eps), 1 - eps)
        return s.call("log", s.div(p, s.sub(1, p)))

    return elementwise(b, (x,), f, b.dtype.compute)


def glu(b: Builder, x: Tensor, dim: int = -1) -> Tensor:
    d = wrap(dim, len(x.shape))
    half = x.shape[d] // 2

    def body(*i: Expr) -> Expr:
        gate = [*i[:d], add(i[d], idx(half)), *i[d + 1 :]]
        return s.mul(raised(x, i), s.sigmoid(raised(x, gate)))

    return b.result(body)


def _mish(v: Expr) -> Expr:
    return s.mul(v, s.tanh(s.select(s.gt(v, 20), v, s.call("log1p", s.exp(v)))))


def _silu_slope(v: Expr) -> Expr:
    rises = s.sigmoid(v)
    return s.mul(rises, s.add(1, s.mul(v, s.sub(1, rises))))


def _mish_slope(v: Expr) -> Expr:
    # log(1 + exp(v)), without overflow
    bent = s.add(s.maximum(v, 0), s.call("log1p", s.exp(s.neg(s.call("abs", v)))))
    inner = s.tanh(bent)
    return s.add(inner, s.mul(s.mul(v, s.sigmoid(v)), s.sub(1, s.mul(inner, inner))))


def _times_slope(slope: Callable[[Expr], Expr]) -> Lowering:
    """The backward of an activation: its derivative times the incoming gradient."""
    return lambda b, grad, x: elementwise(
        b, (grad, x), lambda g, v: s.mul(g, slope(v)), b.dtype.compute
    )


LOWERINGS: Mapping[str, Lowering] = {
    "aten.relu": _of(lambda v: s.maximum(v, 0)),
    "aten.relu6": relu6,
    "aten.sigmoid": _of(s.sigmoid),
    "aten.silu": _of(lambda v: s.div(v, s.add(1, s.exp(s.neg(v))))),
    "aten.mish": _of(_mish),
    # The exporter leaves these two whole.
    "aten.silu_backward.default": _times_slope(_silu_slope),
    "aten.mish_backward.default": _times_slope(_mish_slope),
    "aten.hardsigmoid": _of(_hardsigmoid),
    "aten.hardswish": _of(lambda v: s.mul(v, _hardsigmoid(v))),
    "aten.gelu": gelu,
    "aten.leaky_relu": leaky_relu,
    "aten.prelu": prelu,
    "aten.rrelu": rrelu,
    "aten._prelu_kernel": lambda b, x, w: elementwise(
        b, (x, w), lambda v, u: s.select(s.gt(v, 0), v, s.mul(u, v)), b.dtype.compute
    ),
    "aten.elu": elu,
    "aten.selu": selu,
    "aten.celu": celu,
    "aten.softplus": softplus,
    "aten.hardtanh": hardtanh,
    "aten.log_sigmoid": log_sigmoid,
    "aten.log_sigmoid_forward": log_sigmoid,
    "aten.threshold": threshold,
    "aten.hardshrink": hardshrink,
    "aten.softshrink": softshrink,
    "aten.logit": logit,
    "aten.special_logit": logit,
    "aten.glu": glu,
}
