"""Normalisations: statistics in two passes in at least float32, then one element-wise Compute."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, broadcast, load, raised, wrap
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.reduce import Over, reduce_dims, without
from monotile.frontends.torch.lower.reductions import moments
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.ir.expr import Expr, Tensor, cast

Lowering = Callable[..., Any]

EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}  # PyTorch adds that of what it computes in


def _affine(v: Expr, weight: Tensor | None, bias: Tensor | None, at: Sequence[Expr]) -> Expr:
    """v * weight[at] + bias[at]; both may be absent."""
    if weight is not None:
        v = s.mul(v, cast(load(weight, at), v.dtype))
    return v if bias is None else s.add(v, cast(load(bias, at), v.dtype))


def layer_norm(
    b: Builder,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: object,
) -> Tensor:
    rank = len(x.shape)
    dims = range(rank - len(normalized_shape), rank)
    mean, variance = moments(b, x, dims, 0)

    def body(*i: Expr) -> Expr:
        row = without(dims, i)
        centred = s.sub(raised(x, i), load(mean, row))
        scaled = s.mul(centred, s.call("rsqrt", s.add(load(variance, row), eps)))
        return _affine(scaled, weight, bias, i[dims.start :])

    return b.result(body)


def native_layer_norm(
    b: Builder,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the mean and the reciprocal standard deviation; the latter two keep their dimensions."""
    rank = len(x.shape)
    dims = range(rank - len(normalized_shape), rank)
    mean, variance = moments(b, x, dims, 0)

    def deviation(row: Sequence[Expr]) -> Expr:
        return s.call("rsqrt", s.add(load(variance, row), eps))

    def body(*i: Expr) -> Expr:
        row = without(dims, i)
        scaled = s.mul(s.sub(raised(x, i), load(mean, row)), deviation(row))
        return _affine(scaled, weight, bias, i[dims.start :])

    out = b.result(body, index=0)
    kept = b.result(lambda *i: load(mean, without(dims, i)), index=1)
    return out, kept, b.result(lambda *i: deviation(without(dims, i)), index=2)


def rms_norm(
    b: Builder,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    rank = len(x.shape)
    dims = range(rank - len(normalized_shape), rank)
    wide = x.dtype.compute
    count = math.prod(x.shape[d] for d in dims)
    small = EPSILON[wide.value] if eps is None else eps

    def squared(i: Sequence[Expr]) -> Expr:
        v = raised(x, i)
        return s.mul(v, v)

    added = reduce_dims(b, x, Over(dims), "sum", squared, wide, part="squares")

    def body(*i: Expr) -> Expr:
        mean = s.div(load(added, without(dims, i)), count)
        scaled = s.mul(raised(x, i), s.call("rsqrt", s.add(mean, small)))
        return _affine(scaled, weight, None, i[dims.start :])

    return b.result(body)


def batch_norm_body(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Callable[..., Expr]:
    wide = x.dtype.compute

    def body(*i: Expr) -> Expr:
        channel = [i[1]]
        spread = s.add(cast(load(variance, channel), wide), eps)
        centred = s.sub(raised(x, i), cast(load(mean, channel), wide))
        return _affine(s.mul(centred, s.call("rsqrt", spread)), weight, bias, channel)

    return body


def _group_statistics(b: Builder, x: Tensor, groups: int) -> tuple[Tensor, Tensor, int]:
    """Mean and variance of each (batch, group), and the number of channels in a group."""
    n, c, *space = x.shape
    per = c // groups
    inner = (per, *space)
    split = (n, groups, *inner)
    grouped = b.emit(
        split, x.dtype, lambda *i: load(x, reshape_index(x.shape, split, i)), part="grouped"
    )
    mean, variance = moments(b, grouped, range(2, len(split)), 0)
    return mean, variance, per


def group_norm(
    b: Builder,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: object,
) -> Tensor:
    return _group_norm(b, x, num_groups, weight, bias, eps)


def _group_norm(
    b: Builder, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return b.result(_group_norm_body(x, _group_statistics(b, x, groups), weight, bias, eps))


def _group_norm_body(
    x: Tensor,
    statistics: tuple[Tensor, Tensor, int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Callable[..., Expr]:
    mean, variance, per = statistics

    def body(*i: Expr) -> Expr:
        group = [i[0], s.floordiv(i[1], per)]
        centred = s.sub(raised(x, i), load(mean, group))
        scaled = s.mul(centred, s.call("rsqrt", s.add(load(variance, group), eps)))
        return _affine(scaled, weight, bias, [i[1]])

    return body


def native_group_norm(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """The result, the mean and the reciprocal standard deviation of each group."""
    if x.shape[:2] != (batch, channels):
        raise Unsupported("dimensions folded into one another")
    statistics = _group_statistics(b, x, groups)
    mean, variance = statistics[:2]
    out = b.result(_group_norm_body(x, statistics, weight, bias, eps), index=0)
    kept = b.result(lambda *i: load(mean, i), index=1)

    def deviation(*i: Expr) -> Expr:
        return s.call("rsqrt", s.add(load(variance, i), eps))

    return out, kept, b.result(deviation, index=2)


def instance_norm(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: object,
) -> Tensor:
    """Each channel by its own statistics, or by the running ones."""
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise Unsupported("no statistics")
        return b.result(batch_norm_body(b, x, weight, bias, running_mean, running_var, eps))
    if running_mean is not None:
        raise Unsupported("instance_norm that tracks running statistics while it uses its own")
    return _group_norm(b, x, x.shape[1], weight, bias, eps)


def weight_norm(b: Builder, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """v * g / |v|, with the norm over all dimensions but `dim`."""
    d = wrap(dim, len(v.shape))
    dims = [k for k in range(len(v.shape)) if k != d]
    wide = v.dtype.compute

    def squared(i: Sequence[Expr]) -> Expr:
        e = raised(v, i)
        return s.mul(e, e)

    squares = reduce_dims(b, v, Over(dims), "sum", squared, wide, part="squares")

    def body(*i: Expr) -> Expr:
        length = s.call("sqrt", load(squares, [i[d]]))
        return s.mul(raised(v, i), s.div(raised(g, broadcast(g.shape, i)), length))

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.layer_norm": layer_norm,
    "aten.native_layer_norm": native_layer_norm,
    "aten.rms_norm": rms_norm,
    "aten._weight_norm": weight_norm,
    "aten._weight_norm_interface": lambda b, v, g, dim=0: (weight_norm(b, v, g, dim), None),
    "aten.group_norm": group_norm,
    "aten.native_group_norm": native_group_norm,
    "aten.instance_norm": instance_norm,
}
