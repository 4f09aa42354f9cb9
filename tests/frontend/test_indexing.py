"""Gathers, scatters and tensors made of positions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from monotile.ir.program import Compute, statements
from tests.frontend.against import check, check_operators


def test_gathers() -> None:
    x = torch.randn(4, 5, 6)
    i = torch.tensor([[0, -1, 2], [3, 1, -2]])
    p = i.remainder(4)
    check_operators(
        {
            "embedding": lambda x, i, p: F.embedding(p, x[:, 0]),
            "index_select": lambda x, i, p: x.index_select(1, p[0]),
            "gather": lambda x, i, p: x[0].gather(0, p),
            "gather_last": lambda x, i, p: x[:2, 0].gather(-1, p),
            "take": lambda x, i, p: x.take(p),
            "take_along_dim": lambda x, i, p: torch.take_along_dim(x[:2, :, 0], p, 1),
            "take_along_all": lambda x, i, p: torch.take_along_dim(x, p),
            "gather_nothing": lambda x, i, p: x[0, 0].gather(0, p[0, :0]),
            "index": lambda x, i, p: x[i],
            "index_second": lambda x, i, p: x[:, i],
            "index_pair": lambda x, i, p: x[i, p],
            "index_apart": lambda x, i, p: x[i, :, p],
            "index_broadcast": lambda x, i, p: x[i[:, :1], i[0]],
            "index_mixed": lambda x, i, p: x[1:, i[0], ::2],
            "index_none": lambda x, i, p: x[None, i[0]],
            "index_scalar": lambda x, i, p: x[:, torch.tensor(-1)],
            "one_hot": lambda x, i, p: F.one_hot(p, 5),
            "combinations": lambda x, i, p: torch.combinations(x[0, 0]),
            "combinations of three": lambda x, i, p: torch.combinations(x[0, 0], 3, True),
            "embedding_bag": lambda x, i, p: F.embedding_bag(p, x[:, 0], mode="sum"),
        },
        x,
        i,
        p,
    )


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_scatters() -> None:
    x = torch.randn(4, 5)
    src = torch.randn(2, 3)
    index = torch.tensor([[0, 2, 1], [3, 3, 0]])

    def put(x: torch.Tensor, *at: object, value: torch.Tensor | float) -> torch.Tensor:
        y = x.clone()
        y[at] = value
        return y

    check_operators(
        {
            "scatter": lambda x, s, i: x.scatter(1, i, s),
            "scatter_value": lambda x, s, i: x.scatter(0, i, 7.0),
            "scatter_add": lambda x, s, i: x.scatter_add(0, i, s),
            "scatter_reduce": lambda x, s, i: x.scatter_reduce(1, i, s, "amax"),
            "scatter_multiply": lambda x, s, i: x.scatter(1, i, 2.0, reduce="multiply"),
            "scatter_mean": lambda x, s, i: x.scatter_reduce(1, i, s, "mean"),
            "scatter_new_mean": lambda x, s, i: x.scatter_reduce(
                1, i, s, "mean", include_self=False
            ),
            "scatter_new_amin": lambda x, s, i: x.scatter_reduce(
                1, i, s, "amin", include_self=False
            ),
            "scatter_new_prod": lambda x, s, i: x.long().scatter_reduce(
                1, i, s.long() + 2, "prod", include_self=False
            ),
            "index_add": lambda x, s, i: x.index_add(1, i[0], x[:, :3], alpha=2),
            "index_copy": lambda x, s, i: x.index_copy(0, i[0], x[:3] + 1),
            "index_fill": lambda x, s, i: x.index_fill(1, i[0], -1.0),
            "index_reduce": lambda x, s, i: x.index_reduce(0, i[0], x[:3], "amax"),
            "index_add_scalar": lambda x, s, i: x[0, 0].index_add(0, i[0, :1] * 0, x[1, 1]),
            "put": lambda x, s, i: x.put(i, s, accumulate=True),
            "index_put": lambda x, s, i: x.index_put((i, i), s),
            "index_put_rows": lambda x, s, i: x.index_put((i[0],), x[:3] * 2),
            "accumulate": lambda x, s, i: x.index_put((i[1],), x[:3], accumulate=True),
            "slice": lambda x, s, i: put(x, slice(1, 3), slice(0, 3), value=s),
            "slice_step": lambda x, s, i: put(x, slice(None), slice(0, 5, 2), value=0.0),
            "select": lambda x, s, i: put(x, 1, value=x[0]),
            "element": lambda x, s, i: put(x, -1, -2, value=3.0),
            "mask": lambda x, s, i: put(x, x > 0, value=0.5),
            "mask_of_rows": lambda x, s, i: put(x, x[:, 0] > 0, value=x[0]),
            "accumulate_truth": lambda x, s, i: (x > 0).index_put(
                (i[1],), x[:3] > 1, accumulate=True
            ),
            "accumulate_truth_at_mask": lambda x, s, i: (x > 0).index_put(
                (x[:, 1] > 0,), torch.tensor(True), accumulate=True
            ),
            "truth_product": lambda x, s, i: (x < 1).scatter_reduce(1, i, s > 0, "prod"),
            "index_add_truth": lambda x, s, i: (x[0, 0] > 5).index_add(
                0, i[0, :1] * 0, x[1, 1] < 9
            ),
            "scatter_scalar": lambda x, s, i: x[0, 0].scatter_add(0, i[0, 0] * 0, s[0, 0]),
            "index_put_tensor": lambda x, s, i: put(x, i[0], value=1.5),
            "diagonal_scatter": lambda x, s, i: x.diagonal_scatter(x[:, 0], 1),
            "slice_scatter": lambda x, s, i: x.slice_scatter(x[:, :2], 1, 1, 3),
        },
        x,
        src,
        index,
    )


def test_constructors() -> None:
    check_operators(
        {
            "zeros": lambda x: torch.zeros(2, 3),
            "ones_like": lambda x: torch.ones_like(x, dtype=torch.int32),
            "full": lambda x: torch.full((2,), 7),
            "full_like": lambda x: torch.full_like(x, float("-inf")),
            "new_zeros": lambda x: x.new_zeros(2),
            "new_full": lambda x: x.new_full((2,), 1.5),
            "arange": lambda x: torch.arange(5),
            "arange_float": lambda x: torch.arange(0.5, 3, 0.3),
            "arange_back": lambda x: torch.arange(5, -2, -3),
            "linspace": lambda x: torch.linspace(0, 1, 7),
            "eye": lambda x: torch.eye(3, 4),
            "tril": lambda x: x.tril(-1),
            "triu": lambda x: x.triu(1),
            "fill": lambda x: x.clone().fill_(2.0),
            "copy": lambda x: x.clone().copy_(x[0]),
            "tensor": lambda x: torch.tensor([1.0, 2.0]) + 1,
            "scalar": lambda x: torch.scalar_tensor(3.0),
            "tril_indices": lambda x: torch.tril_indices(3, 3),
            "meshgrid": lambda x: torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"),
            "cartesian": lambda x: torch.cartesian_prod(torch.arange(2), torch.arange(3)),
            "half": lambda x: torch.arange(4, dtype=torch.float16),
        },
        torch.randn(3, 4),
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_equal_size(mode: str) -> None:
    """Each has its own few terms, however many bags there are, and not those of all that lie within its ends."""
    model = nn.EmbeddingBag(10, 4, mode=mode).eval()
    captured = check(model, (torch.randint(0, 10, (7, 3)),))
    reductions = [s for s in statements(captured.program.body) if isinstance(s, Compute) and s.reduce]  # fmt: skip
    assert [a.extent for s in reductions for a in s.reduce] == [3]
