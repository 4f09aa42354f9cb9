"""Operations one after another, each a result of its own."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.zoo.small.registry import Function, Made, small


def each(fs: list[Callable[..., Tensor]], *args: Tensor) -> Made:
    """A model that gives what each of `fs` does."""
    model = Function(lambda _, *given: tuple(f(*given) for f in fs))
    return model, args


@small
def pointwise() -> Made:
    names = "exp log1p sqrt rsqrt tanh sigmoid erf sin cos atan floor round trunc sign neg abs reciprocal expm1 exp2 log2 sinh asinh"
    fs: list[Callable[..., Tensor]] = [
        *(lambda x, _, n=n: getattr(torch, n)(x.abs() + 0.1) for n in names.split()),
        torch.maximum,
        torch.atan2,
        torch.fmod,
        torch.remainder,
        lambda x, y: torch.pow(x.abs(), y),
        lambda x, y: torch.where(x > y, x, y * 2) + (x == y),
        lambda x, y: torch.lerp(x, y, 0.3).clamp(-1, 1),
        lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh") + F.mish(x) + F.softplus(y),
        lambda x, y: torch.addcmul(x, x, y).nan_to_num() + torch.copysign(x, y),
    ]
    return each(fs, torch.randn(7, 33), torch.randn(7, 33))


@small
def reductions() -> Made:
    fs: list[Callable[..., Tensor]] = [
        lambda x: x.sum(),
        lambda x: x.mean(0),
        lambda x: x.var((0, 2)),
        lambda x: x.std(-1),
        lambda x: x.prod(1),
        lambda x: x.amax((1, 2)),
        lambda x: x.amin(0),
        lambda x: torch.logsumexp(x, 1),
        lambda x: torch.linalg.vector_norm(x, dim=(1, 2)),
        lambda x: x.norm(p=1, dim=-1),
        lambda x: torch.softmax(x, 0),
        lambda x: torch.log_softmax(x, 1),
        lambda x: F.layer_norm(x, x.shape[1:]),
        lambda x: (x > 0).any(),
        lambda x: torch.isfinite(x).all(),
        lambda x: (x > 1).sum(-1),
        lambda x: torch.count_nonzero(x > 0),
        lambda x: x.median(),
    ]
    return each(fs, torch.randn(6, 50, 72))


@small
def reductions_of_much() -> Made:
    """A whole tensor, long rows, long columns."""
    fs: list[Callable[..., Tensor]] = [
        lambda x: x.square().mean().sqrt(),
        lambda x: x.sum(0),
        lambda x: x.argmax(),
        lambda x: torch.softmax(x, -1).amax(0),
        lambda x: torch.isnan(x).any(),
    ]
    return each(fs, torch.randn(1000, 3001))


@small
def orders() -> Made:
    """Largest, sorted, accumulated."""
    fs: list[Callable[..., Tensor]] = [
        lambda x: x.argmax(-1),
        lambda x: x.argmin(0),
        lambda x: x.max(1).values + x.min(1).indices,
        lambda x: x.sort(-1).values,
        lambda x: x.argsort(0, descending=True),
        lambda x: x.topk(5).values,
        lambda x: x.topk(3, dim=0, largest=False).indices,
        lambda x: x.kthvalue(4).values,
        lambda x: x.cumsum(-1),
        lambda x: x.cumsum(0),
        lambda x: x.cumprod(1),
        lambda x: x.cummax(0).values,
        lambda x: torch.logcumsumexp(x, 1),
        lambda x: torch.searchsorted(x[0].sort().values, x),
    ]
    return each(fs, torch.randn(9, 40))


@small
def updates() -> Made:
    """Parts of tensors written at positions that are data; some collide."""

    def assigned(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
        y = x.clone()
        y[at] = v
        return y

    def sliced(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
        y = x.clone()
        y[1:3, ::2] = 0
        y[at, 5] += v[:, 0]
        return y

    fs: list[Callable[..., Tensor]] = [
        assigned,
        sliced,
        lambda x, at, v: x.index_put((at,), v, accumulate=True),
        lambda x, at, v: torch.relu(x).index_add(0, at, v).index_add(0, at, v * 2),
        lambda x, at, v: x.scatter(0, at[:, None].expand_as(v), v).softmax(-1),
        lambda x, at, v: x.scatter_add(0, at[:, None].expand_as(v), v),
        lambda x, at, v: x.scatter_reduce(0, at[:, None].expand_as(v), v, "amax"),
        lambda x, at, v: x.index_copy(0, at[:1], v[:1]),
        lambda x, at, v: x.masked_scatter(x > 0, v.repeat(2, 1)),
        lambda x, at, v: torch.histc(x.float(), 5, -1, 2),
    ]
    return each(fs, torch.randn(6, 40), torch.tensor([0, 3, 3, 5]), torch.randn(4, 40))


@small
def lookups() -> Made:
    fs: list[Callable[..., Tensor]] = [
        lambda x, i: x[i],
        lambda x, i: x[:, i, 1],
        lambda x, i: x.gather(0, i[:, None, None].expand(-1, 20, 16)),
        lambda x, i: torch.take_along_dim(x, x.argsort(1), 1),
        lambda x, i: x.flatten()[i * 7],
        lambda x, i: F.one_hot(i, 10).to(x.dtype) @ x[:10, 0],
        lambda x, i: x[torch.arange(5), i, -1],
    ]
    return each(fs, torch.randn(12, 20, 16), torch.tensor([3, 1, 0, 9, 9]))


@small
def moves() -> Made:
    """Elements in other places: copies in other orders of axes, joined, cut, repeated, padded."""
    fs: list[Callable[..., Tensor]] = [
        lambda x: x.permute(0, 2, 3, 1).contiguous() * 2,
        lambda x: x.permute(3, 2, 1, 0).clone(),
        lambda x: torch.cat([x[:, :3], x.flip(1), x.roll(3, -1)], 1),
        lambda x: torch.stack(x.chunk(2, 1)).sum(0),
        lambda x: x.repeat(1, 1, 2, 1) + x.repeat_interleave(2, 2),
        lambda x: F.pad(x, (1, 2, 3, 0)),
        lambda x: F.pad(x, (2, 2, 2, 2), "reflect"),
        lambda x: F.pad(x, (1, 1, 1, 1), "circular"),
        lambda x: F.unfold(x, 3, padding=1),
        lambda x: x.tril(1) + x.triu(-2),
        lambda x: x.diagonal(0, 2, 3).clone(),
        lambda x: x.unfold(3, 4, 2).sum(-1),
        lambda x: x[..., ::2, 1::3] - 1,
        lambda x: F.channel_shuffle(x, 4),
    ]
    return each(fs, torch.randn(2, 8, 12, 14))


@small
def copies() -> Made:
    """Whole vectors of channels with what lies behind them, and images with their channels first."""
    fs: list[Callable[..., Tensor]] = [
        lambda w, x: w.permute(0, 2, 3, 1).contiguous(),
        lambda w, x: x.permute(0, 2, 3, 1).contiguous(),
        lambda w, x: w.flatten(2).mT.contiguous(),
    ]
    return each(fs, torch.randn(96, 64, 3, 3), torch.randn(2, 3, 64, 64))


@small
def resampling() -> Made:
    fs: list[Callable[..., Tensor]] = [
        lambda x, g: F.interpolate(x, (20, 9), mode="bicubic"),
        lambda x, g: F.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x, g: F.interpolate(x, (5, 30), mode="bilinear", align_corners=True),
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        lambda x, g: F.adaptive_avg_pool2d(x, (5, 7)),
        lambda x, g: F.max_pool2d(x, 3, 1, return_indices=True)[1],
        lambda x, g: F.fold(F.unfold(x, 3), (12, 16), 3),
        lambda x, g: F.local_response_norm(x, 2),
        lambda x, g: F.instance_norm(x),
    ]
    return each(fs, torch.randn(1, 4, 12, 16), torch.randn(1, 6, 6, 2))


@small
def integers() -> Made:
    """int64, int32, int8, uint8 and truths."""
    fs: list[Callable[..., Tensor]] = [
        lambda a, b, c, d: a // 3 + a % 7,
        lambda a, b, c, d: torch.div(a, 4, rounding_mode="trunc"),
        lambda a, b, c, d: (b << 2) | (b & 5) ^ 3,
        lambda a, b, c, d: c + c * 2,
        lambda a, b, c, d: (d >> 1).to(torch.float32) / 255,
        lambda a, b, c, d: d + c,
        lambda a, b, c, d: (a > 3) & ~(b < 2) | (c != 0),
        lambda a, b, c, d: a.sum(-1) + d.sum(-1),
        lambda a, b, c, d: c.amax(0),
        lambda a, b, c, d: a.cumsum(1) * b,
        lambda a, b, c, d: a @ a.mT,
        lambda a, b, c, d: d.sort(-1).values,
    ]
    kinds = torch.int64, torch.int32, torch.int8, torch.uint8
    given = (torch.randint(-50, 50, (5, 24)).to(k) for k in kinds)
    return each(fs, *given)
