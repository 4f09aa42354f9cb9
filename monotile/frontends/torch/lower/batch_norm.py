"""Batch normalisation: by running statistics, or by the batch's own, which the functional forms return updated."""

from collections.abc import Callable, Mapping
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.normalisation import batch_norm_body
from monotile.frontends.torch.lower.reductions import moments
from monotile.ir.expr import Expr, Tensor, cast, const

Lowering = Callable[..., Any]


def batch_norm(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: object,
) -> Tensor:
    """Without running statistics the batch's own are used, in inference too."""
    if training or running_mean is None or running_var is None:
        if running_mean is not None:
            raise Unsupported("training")
        mean, variance = _own(b, x)
    else:
        mean, variance = running_mean, running_var
    return b.result(batch_norm_body(b, x, weight, bias, mean, variance, eps))


def inference(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """With the running statistics. The results for the backward pass are these, or empty (on the CPU)."""
    out = b.result(batch_norm_body(b, x, weight, bias, running_mean, running_var, eps), index=0)
    if 0 in b.results[1].shape:
        return (out, *_empty(b, 1))
    return out, *_kept(b, (running_mean, running_var), eps)


def no_stats(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    return _by_batch(b, x, weight, bias, _own(b, x), eps)


def functional(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """The result, the values for the backward pass, and the running statistics after this batch."""
    if not training:
        out = inference(b, x, weight, bias, running_mean, running_var, momentum, eps)
        return (
            *out[:3],
            *(_typed(b, old, k + 3) for k, old in enumerate((running_mean, running_var))),
        )
    own = _own(b, x)
    results = _by_batch(b, x, weight, bias, own, eps)
    return (*results, *_updated(b, x, own, running_mean, running_var, momentum, 3))


def with_update(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """As `functional` in training, with an additional reserve for the backward pass before the running statistics."""
    own = _own(b, x)
    results = _by_batch(b, x, weight, bias, own, eps)
    reserve = _empty(b, 3)[0]
    return (*results, reserve, *_updated(b, x, own, running_mean, running_var, momentum, 4))


def _own(b: Builder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel over the batch."""
    return moments(b, x, [k for k in range(len(x.shape)) if k != 1], 0)


def _by_batch(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    own: tuple[Tensor, Tensor],
    eps: float,
) -> tuple[Tensor, ...]:
    out = b.result(batch_norm_body(b, x, weight, bias, *own, eps), index=0)
    return out, *_kept(b, own, eps)


def _kept(b: Builder, used: tuple[Tensor, Tensor], eps: float) -> tuple[Tensor, Tensor]:
    """For the backward pass: the mean that was used, and the reciprocal of the standard deviation."""
    mean, variance = used
    kept = b.result(lambda c: load(mean, [c]), index=1)
    return kept, b.result(lambda c: s.call("rsqrt", s.add(raised(variance, [c]), eps)), index=2)


def _updated(
    b: Builder,
    x: Tensor,
    own: tuple[Tensor, Tensor],
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    index: int,
) -> tuple[Tensor, Tensor]:
    """The running statistics moved towards the batch's, with the unbiased variance."""
    count = x.size // x.shape[1] if x.size else 0
    unbiased = count / (count - 1) if count > 1 else float("inf")

    def moved(old: Tensor, new: Tensor, scale: float, c: Expr) -> Expr:
        kept = s.mul(raised(old, [c]), 1 - momentum)
        return s.add(kept, s.mul(s.mul(cast(load(new, [c]), kept.dtype), momentum), scale))

    mean = b.result(lambda c: moved(running_mean, own[0], 1.0, c), index=index)
    return mean, b.result(lambda c: moved(running_var, own[1], unbiased, c), index=index + 1)


def _typed(b: Builder, t: Tensor, index: int) -> Tensor:
    """`t` as result number `index`, which may have a wider type."""
    dtype = b.results[index].dtype
    return t if t.dtype == dtype else b.result(lambda c: cast(load(t, [c]), dtype), index=index)


def _empty(b: Builder, first: int) -> list[Tensor | None]:
    """The results from number `first` on: empty tensors; None for those that have elements."""
    return [
        b.result(lambda *_, t=dtype: const(0, t), index=k + first) if 0 in shape else None
        for k, (shape, dtype) in enumerate(b.results[first:])
    ]


LOWERINGS: Mapping[str, Lowering] = {
    "aten.batch_norm": batch_norm,
    "aten._native_batch_norm_legit_no_training": inference,
    "aten._native_batch_norm_legit.no_stats": no_stats,
    "aten._native_batch_norm_legit_functional": functional,
    "aten._batch_norm_with_update_functional": with_update,
}
