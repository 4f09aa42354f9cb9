"""Attention of sequences that lie one after the other (`torch.nn.attention.varlen`), whose lengths a call decides."""

import itertools
from inspect import signature
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.errors import UnsupportedOperatorError
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error

varlen = pytest.importorskip("torch.nn.attention.varlen")
Ends = list[int]
LENGTHS: list[tuple[Ends, Ends]] = [
    ([0, 5, 16, 30], [0, 5, 16, 30]),
    ([0, 4, 4, 28], [0, 9, 12, 40]),  # none, more keys than queries, and tokens of no sequence
    ([0, 30, 30, 30], [0, 40, 40, 40]),
]
# torch 2.11 has neither enable_gqa, which it takes for granted, nor seqused_k
GROUPS = {"enable_gqa": True} if "enable_gqa" in signature(varlen.varlen_attn).parameters else {}
WINDOWS = [(-1, -1), (-1, 0), (3, 0), (2, 4)]


class Packed(nn.Module):
    """lse: with the logarithms of the sums."""

    def __init__(self, window: tuple[int, int], *, lse: bool = False, **more: Any) -> None:
        super().__init__()
        self.how = {"window_size": window, **GROUPS, **more}
        self.lse = lse

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own: torch.Tensor, other: torch.Tensor, used: torch.Tensor | None = None) -> Any:  # fmt: skip
        aux = varlen.AuxRequest(lse=self.lse)
        more = self.how if used is None else {**self.how, "seqused_k": used}
        return varlen.varlen_attn(q, k, v, own, other, 40, 40, return_aux=aux, **more)


def given(own: Ends, other: Ends, dtype: torch.dtype = torch.float32, width: int = 16) -> tuple[torch.Tensor, ...]:  # fmt: skip
    q, *kv = (torch.randn(n, h, width).to(dtype) for n, h in ((30, 4), (40, 2), (40, 2)))
    return (q, *kv, *(torch.tensor(x, dtype=torch.int32) for x in (own, other)))


def right(args: tuple[torch.Tensor, ...], window: tuple[int, int], used: Ends | None = None) -> list[torch.Tensor]:  # fmt: skip
    """Sequence by sequence, in float64."""
    q, k, v = (x.double() for x in args[:3])
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    out, lse = torch.zeros_like(q), torch.full(q.shape[1::-1], -torch.inf, dtype=q.dtype)
    for n, (own, other) in enumerate(zip(*map(itertools.pairwise, map(torch.Tensor.tolist, args[3:5])), strict=True)):  # fmt: skip
        last = other[1] if used is None else other[0] + used[n]
        rows, columns = slice(*own), slice(other[0], last)
        scores = torch.einsum("mhd,nhd->hmn", q[rows], k[columns]) / q.shape[-1] ** 0.5
        length, seen = own[1] - own[0], last - other[0]
        i = torch.arange(length)[:, None] + seen - length
        j = torch.arange(seen)[None]
        hidden = (j < i - window[0]) & (window[0] >= 0) | (j > i + window[1]) & (window[1] >= 0)
        scores = scores.masked_fill(hidden, -torch.inf)
        out[rows] = torch.einsum("hmn,nhd->mhd", scores.softmax(-1).nan_to_num(0), v[columns])
        lse[:, rows] = scores.logsumexp(-1)
    return [out, lse]


@pytest.mark.parametrize("window", WINDOWS)
def test_on_the_cpu(window: tuple[int, int]) -> None:
    fast = monotile.compile(Packed(window), given(*LENGTHS[0]), target="cpu")
    for lengths in LENGTHS:
        args = given(*lengths)
        assert error(fast(*args), right(args, window)[:1]) < 1e-5


def test_logarithms_and_keys_that_are_used() -> None:
    args = given(*LENGTHS[1])
    found = monotile.compile(Packed((-1, -1), lse=True), args, target="cpu")(*args)
    wanted = right(args, (-1, -1))
    assert error(found[0], wanted[:1]) < 1e-5
    torch.testing.assert_close(found[1][:, :28].double(), wanted[1][:, :28], rtol=1e-5, atol=1e-5)
    used = torch.tensor([2, 0, 17], dtype=torch.int32)
    fast = monotile.compile(Packed((-1, 0)), (*args, used), target="cpu")
    assert error(fast(*args, used), right(args, (-1, 0), [2, 0, 17])[:1]) < 1e-5


def test_open_numbers_of_tokens() -> None:
    tokens = Dim("tokens", min=2, max=50)
    shapes = (*({0: tokens},) * 3, None, None, None)

    class Same(Packed):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> Any:  # type: ignore[override]  # fmt: skip
            return super().forward(q, k, v, ends, ends)

    def args(*ends: int) -> tuple[torch.Tensor, ...]:
        q, *kv = (torch.randn(ends[-1], h, 16) for h in (4, 2, 2))
        return (q, *kv, torch.tensor(ends, dtype=torch.int32))

    fast = monotile.compile(Same((-1, 0)), args(0, 4, 9), target="cpu", dynamic_shapes=shapes[:4])
    for ends in ((0, 2, 3), (0, 30, 50), (0, 0, 17)):
        x = args(*ends)
        assert error(fast(*x), right((*x, x[-1]), (-1, 0))[:1]) < 1e-5


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    args = given(*LENGTHS[0], torch.float16, 64)
    fast = Emulated(Packed((-1, 0)), args)
    assert "attend" in "".join(s.method.describe() for stage in fast.plan.body for s in stage.steps)  # type: ignore[union-attr]
    for lengths in LENGTHS[:2]:
        args = given(*lengths, torch.float16, 64)
        assert error(fast(*args)[0], right(args, (-1, 0))[:1]) < 2e-3


def test_what_there_is_not() -> None:
    q, _, _, own, _ = given(*LENGTHS[0])
    pages, table = torch.randn(6, 8, 2, 16), torch.zeros(3, 2, dtype=torch.int32)

    class Pages(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, own: torch.Tensor, used: torch.Tensor, table: torch.Tensor) -> Any:  # fmt: skip
            return varlen.varlen_attn(q, k, k, own, None, 40, 16, seqused_k=used, block_table=table, **GROUPS)  # fmt: skip

    with pytest.raises(UnsupportedOperatorError, match=r"_varlen_attn.*keys in pages"):
        monotile.compile(Pages(), (q, pages, own, torch.ones_like(own[1:]), table), target="cpu")
