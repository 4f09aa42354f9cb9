"""Reductions, statistics, softmax, scans, sorting."""

import pytest
import torch
import torch.nn.functional as F

from tests.frontend.against import check_operators


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_reductions(dtype: torch.dtype) -> None:
    check_operators(
        {
            "sum": lambda x: x.sum(),
            "sum_dims": lambda x: x.sum((0, -1)),
            "sum_keep": lambda x: x.sum(1, keepdim=True),
            "sum_bool": lambda x: (x > 0).sum(),
            "sum_int": lambda x: (x * 4).to(torch.int32).sum(1),
            "sum_dtype": lambda x: x.sum(1, dtype=torch.float64),
            "mean": lambda x: x.mean(),
            "mean_dim": lambda x: x.mean((1, 2), keepdim=True),
            "prod": lambda x: x.prod(2),
            "amax": lambda x: x.amax((0, 2)),
            "amin": lambda x: x.amin(1, keepdim=True),
            "max": lambda x: x.max(),
            "min": lambda x: x.min(),
            "max_dim": lambda x: x.max(1),
            "min_dim": lambda x: x.min(-1, keepdim=True),
            "argmax": lambda x: x.argmax(),
            "argmax_dim": lambda x: x.argmax(1),
            "argmin_keep": lambda x: x.argmin(2, keepdim=True),
            "aminmax": lambda x: torch.aminmax(x, dim=1),
            "any": lambda x: (x > 1).any(1),
            "all": lambda x: (x > -9).all(),
            "any_dims": lambda x: (x > 1).any((0, 2)),
            "count_nonzero": lambda x: torch.count_nonzero(x > 0, 1),
            "var": lambda x: x.var(),
            "var_dim": lambda x: x.var(1, keepdim=True),
            "var_population": lambda x: x.var((0, 2), unbiased=False),
            "std": lambda x: x.std(2),
            "std_correction": lambda x: x.std(2, correction=2),
            "var_mean": lambda x: torch.var_mean(x, 1),
            "std_mean": lambda x: torch.std_mean(x, (0, 1), keepdim=True),
            "softmax": lambda x: F.softmax(x, -1),
            "softmax_middle": lambda x: x.softmax(1),
            "log_softmax": lambda x: F.log_softmax(x, 0),
            "softmax_dtype": lambda x: x.softmax(1, dtype=torch.float32),
            "softmin": lambda x: F.softmin(x, 1),
            "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
            "norm": lambda x: torch.linalg.vector_norm(x),
            "norm_1": lambda x: torch.linalg.vector_norm(x, 1, (0, 1)),
            "norm_3": lambda x: torch.linalg.vector_norm(x, 3, 1, keepdim=True),
            "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
            "norm_0": lambda x: torch.linalg.vector_norm(x, 0, 1),
            "matrix_norm": lambda x: torch.linalg.norm(x[0].float()),
            "normalize": lambda x: F.normalize(x, dim=1),
            "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=1),
            "cumsum": lambda x: x.cumsum(1),
            "cumprod": lambda x: x.cumprod(2),
            "cummax": lambda x: x.cummax(1),
            "cummin": lambda x: x.cummin(2),
            "logcumsumexp": lambda x: x.float().logcumsumexp(1),
            "diff": lambda x: x.diff(dim=1),
            "diff_twice": lambda x: x.diff(2, 1, prepend=x[:, :1], append=x[:, :2]),
            "diff_bool": lambda x: (x > 0).diff(dim=2, prepend=x[:, :, :1] > 1),
            "trace": lambda x: x[0, :, :3].float().trace(),  # of float16 from PyTorch 2.13 on
        },
        torch.randn(2, 5, 6).to(dtype),
        tolerance=None if dtype is torch.float32 else 2e-2,
    )


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom")
def test_the_spread_of_one_value() -> None:
    """It is 0 / 0 with a correction, whatever a fused multiplication and addition finds for 0."""
    check_operators(
        {
            "std": lambda x, y: (x * y).std(0, keepdim=True),
            "std_population": lambda x, y: (x + y).std(0, correction=0),
        },
        torch.tensor([0.35271885991096497]),
        torch.tensor([0.35271885991096497]),
    )


def test_scalars_and_infinite_rows() -> None:
    inf = float("inf")
    check_operators(
        {
            "sum": lambda x, s: s.sum(),
            "softmax": lambda x, s: s.softmax(0),
            "argmax": lambda x, s: s.argmax(),
            "max_dim": lambda x, s: s.max(0),
            "cumsum": lambda x, s: s.cumsum(0),
            "sort": lambda x, s: s.sort(),
            "logsumexp": lambda x, s: x.logsumexp(1),
            "logcumsumexp": lambda x, s: x.logcumsumexp(1),
            "norms_of_one": lambda x, s: (s * 1e30).norm() + (x[:, :1] * 1e-30).norm(3, dim=1),
            "softmax_inf": lambda x, s: x.softmax(1),
            "amax": lambda x, s: x.amax(1),
            "argmax_nan": lambda x, s: torch.stack([x[0], x[0] * float("nan")]).argmax(),
        },
        torch.tensor([[1.0, -inf, 2.0], [-inf, -inf, -inf], [inf, 1.0, 2.0]]),
        torch.tensor(3.5),
    )


def test_sorting() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 1.0, float("nan")], [0.0, -1.0, 5.0, 5.0, 2.0]])
    check_operators(
        {
            "sort": lambda x: x.sort(stable=True),
            "sort_descending": lambda x: x.sort(dim=1, descending=True, stable=True),
            "sort_rows": lambda x: x.sort(0),
            "argsort": lambda x: x.argsort(dim=1, stable=True),
            "topk_values": lambda x: x.topk(3)[0],
            "topk_smallest": lambda x: x.topk(1, largest=False, dim=0),
            "bucketize": lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0, 2.5])),
            "bucketize_right": lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0]), right=True),
            "searchsorted": lambda x: torch.searchsorted(torch.tensor([0, 2, 4]), x[1].int()),
        },
        x,
    )


def test_order_statistics() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 4.0, float("nan")], [0.0, -1.0, 5.0, 7.0, 2.0]])
    check_operators(
        {
            "median": lambda x: x.median(1),
            "median_keep": lambda x: x.median(0, keepdim=True),
            "nanmedian": lambda x: x.nanmedian(1),
            "median_all": lambda x: (x.median(), x[1].median(), x.nanmedian()),
            "kthvalue": lambda x: x.kthvalue(2, 1),
        },
        x,
    )
    y = torch.tensor([[3.0, 1.0, 2.0, 1.0, 3.0], [0.0, -1.0, float("nan"), -1.0, 2.0]])
    check_operators(
        {
            "mode": lambda y: (y[:1].mode(1), y.mode(1)[0]),  # beside NaN PyTorch's position is any
            "mode_keep": lambda y: y[:, :2].mode(0, keepdim=True),
            "mode_int": lambda y: (y[0].to(torch.int32) // 2).mode(),
            "mode_scalar": lambda y: y[0, 0].mode(),
            "mode_nan": lambda y: (y[1, 2:3] + y[0]).mode(0)[0],
        },
        y,
    )


def test_segments() -> None:
    check_operators(
        {
            f"{how}_{initial}": lambda x, n, o, y, m, h=how, i=initial: (
                torch.segment_reduce(x, h, lengths=n, initial=i),
                torch.segment_reduce(x, h, offsets=o, initial=i),
                torch.segment_reduce(y, h, lengths=m, axis=1, initial=i),
            )
            for how in ("sum", "mean", "prod", "max", "min")
            for initial in (None, 0.5)
        },
        torch.randn(6, 3),
        torch.tensor([2, 0, 3, 1]),
        torch.tensor([0, 2, 2, 5, 6]),
        torch.randn(2, 5, 3),
        torch.tensor([[2, 0, 3], [1, 4, 0]]),
    )


def test_long_scans_go_in_blocks() -> None:
    check_operators(
        {
            "cumsum": lambda x: x.cumsum(1),
            "cumsum_int": lambda x: (x > 0).cumsum(1),
            "cumprod": lambda x: (1 + x / 1000).cumprod(1),
        },
        torch.randn(2, 150, 2),
    )


def test_distances() -> None:
    check_operators(
        {
            "cdist": lambda x, y: torch.cdist(x, y),
            "cdist_1": lambda x, y: torch.cdist(x, y, p=1.0),
            "cdist_3": lambda x, y: torch.cdist(x, y, p=3.0),
            "cdist_inf": lambda x, y: torch.cdist(x, y, p=float("inf")),
            "pairwise": lambda x, y: F.pairwise_distance(x[0], y[0, :1]),
            "dist": lambda x, y: torch.dist(x, y[:, :1]),
        },
        torch.randn(2, 3, 4),
        torch.randn(2, 5, 4),
    )
