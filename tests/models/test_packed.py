"""Attention of sequences that lie one after the other (`torch.nn.attention.varlen`), whose lengths a call decides."""

import itertools
import random
from inspect import signature
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.errors import CaptureError, UnsupportedOperatorError
from monotile.plan.nodes import Bound, Plan, Repeat, Stage
from monotile.plan.walk import stages_in
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
# PyTorch 2.11 takes enable_gqa for granted, and has no seqused_k.
KNOWN = signature(varlen.varlen_attn).parameters
GROUPS = {"enable_gqa": True} if "enable_gqa" in KNOWN else {}
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


class Plain(nn.Module):
    """The same by hand: query m sees the keys from first[m] on and before last[m]."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:  # fmt: skip
        n = torch.arange(k.shape[0])
        seen = (n >= first[:, None]) & (n < last[:, None])
        scores = torch.einsum("mhd,nhd->hmn", q, k) / q.shape[-1] ** 0.5
        shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hmn,nhd->mhd", shares, v)


class Layers(nn.Module):
    """A transformer of equal layers; exact: as eager PyTorch has it, with a mask."""

    def __init__(self, layers: int, heads: int = 2, width: int = 16, *, exact: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.exact, size = heads, exact, heads * width
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(layers))
        self.projections = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(layers))
        self.outputs = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        for norm, inward, outward in zip(self.norms, self.projections, self.outputs, strict=True):
            q, k, v = inward(norm(x)).view(x.shape[0], 3, self.heads, -1).unbind(1)
            if self.exact:
                number = torch.bucketize(torch.arange(x.shape[0]), ends[1:], right=True)
                mask = (number[:, None] == number[None]).tril()
                mixed = nn.functional.scaled_dot_product_attention(
                    *(t.transpose(0, 1) for t in (q, k, v)), attn_mask=mask
                ).transpose(0, 1)
            else:
                mixed = varlen.varlen_attn(q, k, v, ends, ends, 99, 99, window_size=(-1, 0))
            x = x + outward(mixed.flatten(1))
        return x


def lengths(tokens: int, sequences: int, seed: int) -> Ends:
    """Where so many sequences begin and end: some have no tokens, and some tokens may be in none."""
    chance = random.Random(seed)
    inner = [chance.choice((chance.randint(0, tokens), tokens // 2)) for _ in range(sequences)]
    return [0, *sorted(inner), chance.choice((tokens, tokens - 3))][: sequences + 1]


def packed(ends: Ends, tokens: int, dtype: torch.dtype = torch.float32, width: int = 16) -> tuple[torch.Tensor, ...]:  # fmt: skip
    q, *kv = (torch.randn(tokens, h, width).to(dtype) for h in (4, 2, 2))
    own = torch.tensor(ends, dtype=torch.int32)
    return (q, *kv, own, own)


def bounds(plan: Plan) -> set[Bound]:
    return {b for stage in stages_in(plan.body) for step in stage.steps for b in step.bounds}


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


def test_logarithms() -> None:
    args = given(*LENGTHS[1])
    found = monotile.compile(Packed((-1, -1), lse=True), args, target="cpu")(*args)
    wanted = right(args, (-1, -1))
    assert error(found[0], wanted[:1]) < 1e-5
    torch.testing.assert_close(found[1][:, :28].double(), wanted[1][:, :28], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif("seqused_k" not in KNOWN, reason="this release of PyTorch has no seqused_k")
def test_keys_that_are_used() -> None:
    args, used = given(*LENGTHS[1]), torch.tensor([2, 0, 17], dtype=torch.int32)
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


@pytest.mark.parametrize("window", WINDOWS)
def test_runs_of_rows_have_their_own_keys(window: tuple[int, int]) -> None:
    """Several runs of rows, the last one short, with ends anywhere."""
    fast = monotile.compile(Packed(window), packed(lengths(75, 5, 0), 75), target="cpu")
    assert {b.at for b in bounds(fast.plan)} >= {(("i0", 32),)}
    for seed in range(8):
        args = packed(lengths(75, 5, seed), 75)
        assert error(fast(*args), right(args, window)[:1]) < 1e-5


def dirty(dtype: torch.dtype, width: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Three sequences of 128 tokens, with values of the second one that would show wherever they were multiplied, if only by 0; and what is
    right elsewhere."""
    args = packed([0, 128, 256, 384], 384, dtype, width)
    (wanted,) = right(args, (-1, -1))[:1]
    args[2][128:256] = torch.nan
    return args, torch.cat([wanted[:128], wanted[256:]])


def others(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:128], x[256:]])


def test_keys_of_other_sequences_are_not_read() -> None:
    args, wanted = dirty(torch.float32, 16)
    fast = monotile.compile(Packed((-1, -1)), args, target="cpu")
    assert error(others(fast(*args)), [wanted]) < 1e-5


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_keys_of_other_sequences_are_not_read_on_the_emulator(dtype: torch.dtype) -> None:
    args, wanted = dirty(dtype, 64)
    fast = Emulated(Packed((-1, -1)), args)
    assert {b.at for b in bounds(fast.plan)} == {(("i0", 128),)}
    assert error(others(fast(*args)[0]), [wanted]) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("window", WINDOWS)
def test_runs_on_the_emulator(window: tuple[int, int]) -> None:
    fast = Emulated(Packed(window), packed(lengths(150, 5, 0), 150, torch.float16, 64))
    for seed in range(3):
        args = packed(lengths(150, 5, seed), 150, torch.float16, 64)
        assert error(fast(*args)[0], right(args, window)[:1]) < 2e-3


def test_ends_of_rows_that_a_model_computes() -> None:
    """What counts is the form of the mask. A row that sees nothing is NaN, as in PyTorch."""
    q, k, v = (torch.randn(90, 2, 16) for _ in range(3))
    first = torch.arange(90) // 30 * 30
    args = (q, k, v, first, (first + 30).clamp(max=80))
    fast = monotile.compile(Plain(), args, target="cpu")
    assert (("i0", 32),) in {b.at for b in bounds(fast.plan)}
    torch.testing.assert_close(fast(*args), Plain()(*args), rtol=1e-4, atol=1e-5)
    none = (*args[:3], first, torch.where(torch.arange(90) == 7, 0, args[4]))
    torch.testing.assert_close(fast(*none), Plain()(*none), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("open_tokens", [False, True], ids=["fixed", "open"])
def test_layers_stay_a_loop(*, open_tokens: bool) -> None:
    """The ends are found once, in front of it. With fewer tokens than there may be, no row behind them counts."""
    torch.manual_seed(0)
    model, exact = Layers(4).eval(), Layers(4, exact=True).eval()
    exact.load_state_dict(model.state_dict())
    shapes = ({0: Dim("tokens", min=2, max=80)}, None) if open_tokens else None

    def args(*ends: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(ends[-1], 32), torch.tensor(ends, dtype=torch.int32)

    fast = monotile.compile(model, args(0, 20, 50, 80), target="cpu", dynamic_shapes=shapes)
    (loop,) = (n for n in fast.plan.body if isinstance(n, Repeat))
    assert loop.extent == 4
    assert any(b.at for b in bounds(fast.plan))
    assert any("run_end" in s.computes for n in fast.plan.body if isinstance(n, Stage) for s in n.steps)  # fmt: skip
    for ends in ((0, 20, 50, 80), (0, 0, 33, 80), *(((0, 9, 9, 41), (0, 1, 2, 3)) * open_tokens)):
        x = args(*ends)
        torch.testing.assert_close(fast(*x), exact(*x), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif("block_table" not in KNOWN, reason="this release of PyTorch has no pages")
def test_what_there_is_not() -> None:
    q, _, _, own, _ = given(*LENGTHS[0])
    pages, table = torch.randn(6, 8, 2, 16), torch.zeros(3, 2, dtype=torch.int32)

    class Pages(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, own: torch.Tensor, used: torch.Tensor, table: torch.Tensor) -> Any:  # fmt: skip
            return varlen.varlen_attn(q, k, k, own, None, 40, 16, seqused_k=used, block_table=table, **GROUPS)  # fmt: skip

    with pytest.raises(UnsupportedOperatorError, match=r"_varlen_attn.*keys in pages"):
        monotile.compile(Pages(), (q, pages, own, torch.ones_like(own[1:]), table), target="cpu")


def test_numbers_of_segments_bound_keys() -> None:
    """Where the model computes them so that they ascend; an argument may be in any order."""
    torch.manual_seed(0)
    model = Layers(2, exact=True).eval()

    def args(*ends: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(ends[-1], 32), torch.tensor(ends, dtype=torch.int32)

    fast = monotile.compile(model, args(0, 20, 50, 80), target="cpu")
    assert (("i1", 32),) in {b.at for b in bounds(fast.plan)}
    for ends in ((0, 20, 50, 80), (0, 0, 33, 80), (0, 1, 2, 80)):
        x = args(*ends)
        torch.testing.assert_close(fast(*x), model(*x), rtol=1e-4, atol=1e-5)

    class Given(nn.Module):
        def forward(self, q: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            mask = number[:, None] == number[None]
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    own = torch.randn(2, 80, 16), torch.randint(4, (80,))
    found = monotile.compile(Given(), own, target="cpu")
    assert not bounds(found.plan)
    torch.testing.assert_close(found(*own), Given()(*own), rtol=1e-4, atol=1e-5)


def test_nested_tensors_are_refused() -> None:
    x = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)], layout=torch.jagged)
    with pytest.raises(CaptureError, match=r"nested tensor.*torch\.nn\.attention\.varlen"):
        monotile.compile(nn.Linear(16, 16), (x,), target="cpu")


def test_nested_tensors_run_in_pytorch_under_dynamo() -> None:
    torch.compiler.reset()
    x = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)], layout=torch.jagged)
    model = nn.Linear(16, 16).requires_grad_(False)
    found = torch.compile(model, backend="monotile")(x)
    torch.testing.assert_close(found.values(), model(x).values())
