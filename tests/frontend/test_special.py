"""Special functions, strided views, copies of views, statistics of batches, against PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from monotile.errors import UnsupportedOperatorError
from monotile.frontends.torch.capture import capture
from tests.frontend.against import Operators, check_operators


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 2e-5), (torch.float64, 5e-9)]
)  # PyTorch's trigamma is no better
def test_special_functions(dtype: torch.dtype, near: float) -> None:
    x = torch.tensor(
        [-7.3, -2.6, -0.4, 1e-3, 0.1, 0.5, 1.4616, 3.0, 9.9, 30.5, torch.nan], dtype=dtype
    )
    check_operators(
        {
            "digamma": torch.digamma,
            **{f"polygamma_{n}": lambda v, n=n: torch.polygamma(n, v) for n in range(5)},
            "mvlgamma": lambda v: torch.mvlgamma(v.abs() + 2, 3),
            "i0": torch.i0,
            **{n: getattr(torch.special, n) for n in ("i0e", "i1", "i1e", "erfcx")},
            "erfinv": lambda v: torch.erfinv(v / 10),
            "angle": torch.angle,
        },
        x,
        tolerance=near,
    )


def test_special_functions_at_their_poles() -> None:
    x = torch.tensor([0.0, -0.0, -1.0, -3.0, -torch.inf])
    check_operators({"digamma": torch.digamma, "polygamma": lambda v: torch.polygamma(2, v)}, x)
    check_operators({"digamma": torch.digamma}, torch.tensor(torch.inf))
    y = torch.tensor([0.0, 1.0, -1.0, 1.5, 0.99999, -0.7, torch.inf])
    check_operators({"erfinv": torch.erfinv, "i0": lambda v: torch.i0(v * 80)}, y)
    check_operators({n: getattr(torch.special, n) for n in ("i0e", "i1e", "erfcx")}, y * 25)


def test_special_functions_near_their_ends() -> None:
    near = torch.tensor([-1.0, 1.0], dtype=torch.float64) * (1 - 2**-53)
    check_operators({"erfinv": torch.erfinv}, near, tolerance=1e-8)
    huge = torch.tensor([-3e38, 1e38])
    check_operators({"i0": torch.i0, "i1": torch.special.i1}, huge)


def test_incomplete_gamma() -> None:
    a = torch.tensor([0.0, 1e-3, 0.1, 1.0, 2.5, 30.0, 1e3, 1e5, torch.inf, -1.0, torch.nan])
    near = 1 + torch.linspace(-1, 1, 7) / (1 + a[:, None].nan_to_num(0, 0, 0).abs()).sqrt()
    x = torch.cat(
        [a[:, None] * near, torch.tensor([0.0, 1e-4, 2.0, 50.0, torch.inf]).expand(11, 5)], 1
    )
    check_operators({"P": torch.igamma, "Q": torch.igammac}, a[:, None], x)
    with pytest.raises(UnsupportedOperatorError, match="float64"):
        capture(Operators({"P": torch.igamma}).eval(), (a.double(), a.double()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_frexp(dtype: torch.dtype) -> None:
    kind = torch.finfo(dtype)
    ends = [
        kind.max,
        -kind.max,
        kind.tiny,
        kind.tiny * kind.eps,
        0.0,
        -0.0,
        1.0,
        -2.0,
        0.75,
        8 - 8 * kind.eps,
    ]
    check_operators(
        {"frexp": torch.frexp}, torch.tensor([*ends, torch.nan], dtype=dtype), tolerance=1e-30
    )
    check_operators(
        {"frexp": lambda x: torch.frexp(x)[0]}, torch.tensor([torch.inf, -torch.inf], dtype=dtype)
    )


def test_strides_of_a_whole_storage() -> None:
    x, y = torch.randn(4, 6), torch.randn(2, 3)
    check_operators(
        {
            "windows": lambda v, _: v.as_strided((5, 4), (4, 1), 3),
            "copy": lambda v, _: torch.as_strided_copy(v, (3, 2), (1, 6)),
            "scatter": lambda v, w: torch.as_strided_scatter(v, w, (2, 3), (12, 2), 1),
            "transposed": lambda v, _: (v * 2).T.as_strided((3, 4), (2, 3), 5),
            "heads": lambda v, _: (
                (v + 1).view(4, 2, 3).permute(1, 0, 2)[None].as_strided((2, 3, 3), (9, 3, 1))
            ),
        },
        x,
        y,
    )


def test_strides_of_part_of_a_storage_are_refused() -> None:
    model = Operators({"part": lambda v: v[1:].as_strided((2, 2), (2, 1), 0)})
    with pytest.raises(UnsupportedOperatorError, match="shares its storage"):
        capture(model.eval(), (torch.randn(4, 6),))


def test_copies_of_views() -> None:
    check_operators(
        {
            "view": lambda v: torch.view_copy(v, (6, 4)),
            "permute": lambda v: torch.permute_copy(v, (1, 0)),
            "unbind": torch.unbind_copy,
            "narrow": lambda v: torch.narrow_copy(v, 1, 2, 3),
            "split": lambda v: torch.split_copy(v, 2),
        },
        torch.randn(4, 6),
    )


def test_normalisation_by_the_statistics_of_the_batch() -> None:
    x, weight, mean, spread = torch.randn(5, 3, 4), torch.randn(3), torch.randn(3), torch.rand(3)
    ops = torch.ops.aten
    check_operators(
        {
            "plain": lambda v, w, m, s: F.batch_norm(v, None, None, w, training=True),
            "no_stats": lambda v, w, m, s: ops._native_batch_norm_legit.no_stats(
                v, w, None, True, 0.1, 1e-5
            ),
            "functional": lambda v, w, m, s: ops._native_batch_norm_legit_functional(
                v, w, m, m, s, True, 0.3, 1e-5
            ),
            "inference": lambda v, w, m, s: ops._native_batch_norm_legit_functional(
                v, w, m, m, s, False, 0.3, 1e-5
            ),
            "update": lambda v, w, m, s: ops._batch_norm_with_update_functional(
                v, w, m, m, s, 0.3, 1e-5
            ),
        },
        x,
        weight,
        mean,
        spread,
    )


def test_circular_padding_that_takes_away() -> None:
    check_operators(
        {
            f"pad{k}": lambda v, p=p: F.pad(v, p, mode="circular")
            for k, p in enumerate([(-1, 1, -2, 1), (2, -3, 0, 1), (-1, -1, 1, 2), (1, 0, -1, 0)])
        },
        torch.randn(1, 3, 4, 5),
    )


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_at_indices(include_self: bool) -> None:
    index = torch.tensor([0, 2, 2, 0, 3])
    check_operators(
        {
            kind: lambda v, w, i, kind=kind: v.index_reduce(
                1, i, w, kind, include_self=include_self
            )
            for kind in ("prod", "mean", "amax", "amin")
        },
        torch.randn(3, 4, 2),
        torch.randn(3, 5, 2),
        index,
    )


def test_sampling_of_volumes() -> None:
    x, grid = torch.randn(2, 3, 4, 5, 6), torch.rand(2, 3, 2, 4, 3) * 4 - 2
    check_operators(
        {
            f"{mode}_{padding}_{corners}": lambda v, g, m=mode, p=padding, c=corners: F.grid_sample(
                v, g, mode=m, padding_mode=p, align_corners=c
            )
            for mode in ("bilinear", "nearest")
            for padding in ("zeros", "border", "reflection")
            for corners in (True, False)
        },
        x,
        grid,
    )


def test_pairs_counts_and_norms_of_rows() -> None:
    x, repeats = torch.randn(5, 3), torch.tensor([2, 0, 3, 1, 2])
    check_operators(
        {
            **{f"pdist_{p}": lambda v, r, p=p: F.pdist(v, p) for p in (0, 1, 2, 3.5, torch.inf)},
            "repeat": lambda v, r: v.repeat_interleave(r, 0, output_size=8),
            "nonzero": lambda v, r: torch.nonzero_static(v > 0, size=20, fill_value=7),
            "search": lambda v, r: torch.searchsorted(r, v[:, 0].contiguous(), sorter=r.argsort()),
            "bucketize": lambda v, r: torch.bucketize(v, r.cumsum(0)),
            "bucketize_number": lambda v, r: torch.bucketize(2.5, r.cumsum(0)),
            "first_nonzero": lambda v, r: torch.nonzero_static(r, size=2),
            **{
                f"renorm_{p}": lambda v, r, p=p: torch.ops.aten.embedding_renorm(v, r, 1.0, p)
                for p in (1.0, 2.0, torch.inf)
            },
        },
        x,
        repeats,
    )
