"""Contractions and attention."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from monotile.analysis.contraction import contraction
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute
from tests.frontend.against import Operators, check, check_operators


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products(dtype: torch.dtype) -> None:
    v, m, n, t, b = (
        torch.randn(s).to(dtype) for s in ((4,), (3, 4), (4, 5), (2, 3, 4), (6, 1, 4, 5))
    )
    check_operators(
        {
            "dot": lambda v, m, n, t, b: v @ v,
            "mv": lambda v, m, n, t, b: m @ v,
            "vm": lambda v, m, n, t, b: v @ n,
            "mm": lambda v, m, n, t, b: m @ n,
            "bmm": lambda v, m, n, t, b: torch.bmm(t, t.mT),
            "tm": lambda v, m, n, t, b: t @ n,
            "tv": lambda v, m, n, t, b: t @ v,
            "broadcast": lambda v, m, n, t, b: t @ b,
            "vector_batch": lambda v, m, n, t, b: v @ b,
            "addmm": lambda v, m, n, t, b: torch.addmm(n[0], m, n, beta=0.5, alpha=2),
            "addmv": lambda v, m, n, t, b: torch.addmv(m[:, 0], m, v),
            "baddbmm": lambda v, m, n, t, b: torch.baddbmm(m[0, :3], t, t.mT),
            "addbmm": lambda v, m, n, t, b: torch.addbmm(m[:, :3], t, t.mT, beta=2),
            "outer": lambda v, m, n, t, b: torch.outer(v, n[0]),
            "linear": lambda v, m, n, t, b: F.linear(t, m, m[:, 0]),
            "linear_plain": lambda v, m, n, t, b: F.linear(v, m),
            "bilinear": lambda v, m, n, t, b: F.bilinear(m, m, t[:, :1].expand(2, 4, 4), v[:2]),
            "einsum": lambda v, m, n, t, b: torch.einsum("bij,kj->bik", t, m),
            "einsum_implicit": lambda v, m, n, t, b: torch.einsum("ij,jk", m, n),
            "einsum_ellipsis": lambda v, m, n, t, b: torch.einsum("...i,i->...", t, v),
            "einsum_diagonal": lambda v, m, n, t, b: torch.einsum("ii->i", m[:, :3]),
            "einsum_sum": lambda v, m, n, t, b: torch.einsum("bij->j", t),
            "einsum_three": lambda v, m, n, t, b: torch.einsum("bij,jk,k->bi", t, n, n[0]),
            "tensordot": lambda v, m, n, t, b: torch.tensordot(t, n, 1),
        },
        v,
        m,
        n,
        t,
        b,
        tolerance={torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype),
    )


def test_products_without_a_sum_take_operands_of_different_types() -> None:
    """As Chronos-2 multiplies a mask with one of float32."""
    mask, x, index = torch.rand(2, 3) > 0.5, torch.randn(3, 4), torch.randint(0, 4, (2, 3))
    check_operators(
        {
            "bool_float": lambda m, x, i, h: torch.einsum("qk,kt->qkt", m, x),
            "int_float": lambda m, x, i, h: torch.einsum("qk,kt->qkt", i, x),
            "half_bool": lambda m, x, i, h: torch.einsum("kt,qk->qkt", h, m),
            "half_float": lambda m, x, i, h: torch.einsum("kt,kt->kt", h, x),
            "bool_bool": lambda m, x, i, h: torch.einsum("qk,qk->qk", m, m),
        },
        mask,
        x,
        index,
        x.half(),
    )


def test_linear_is_a_contraction_and_a_bias() -> None:
    body = capture(nn.Linear(4, 3), (torch.randn(2, 5, 4),)).program.body
    assert [s.out.name for s in body if isinstance(s, Compute)] == ["linear_product", "linear"]
    first = body[0]
    assert isinstance(first, Compute)
    found = contraction(first)
    assert found is not None
    assert (found.m, found.n, found.k) == ((0, 1), (2,), (0,))


def _attention(**options: object) -> Operators:
    return Operators({"out": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attention(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 4, n, 8).to(dtype) for n in (5, 6, 6))
    mask = torch.rand(2, 1, 5, 6) > 0.4
    mask[0, 0, 2] = False  # nothing to attend to: zeros
    for options in (
        {},
        {"scale": 0.7},
        {"is_causal": True},
        {"attn_mask": mask},
        {"attn_mask": torch.randn(5, 6).to(dtype)},
        {"attn_mask": torch.zeros(5, 6).masked_fill(~mask[0, 0], float("-inf")).to(dtype)},
    ):
        check(_attention(**options), (q, k, v))


def test_grouped_query_attention() -> None:
    q, k, v = (torch.randn(2, h, 5, 8) for h in (6, 2, 2))
    check(_attention(enable_gqa=True, is_causal=True), (q, k, v))


def test_attention_of_one_head() -> None:
    q, k, v = (torch.randn(3, n, 8) for n in (5, 6, 6))
    check(_attention(), (q, k, v))


def test_multihead_attention() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    check(model, (torch.randn(2, 5, 8),) * 3)


def test_attention_of_scores_that_are_all_minus_infinity_is_zero() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        plain = F.scaled_dot_product_attention(x, y, y)
        return plain, F.scaled_dot_product_attention(x, y, y, is_causal=True)

    check_operators({"f": f}, torch.full((2, 3, 4), -math.inf), torch.rand(2, 3, 4) + 0.1)
