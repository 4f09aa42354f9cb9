"""Dimensions that are taken apart between element-wise statements become one."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import monotile
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Binary, Expr, Load, Tensor, Unary, idx
from monotile.ir.printer import show_statement
from monotile.ir.program import Compute, Program, compute
from monotile.ir.verify import verify
from monotile.kernels.attention.method import Attend
from monotile.plan.nodes import Stage
from monotile.transform.layout.merge_axes import merge_axes

F32 = DType.F32
X, M = Tensor("x", (12, 5), F32), Tensor("m", (4, 5), F32)
# Three images of four windows, and a mask of each window.
ADDED = compute(
    Tensor("y", (3, 4, 5), F32),
    lambda b, w, j: Binary(
        "add", Load(X, (Binary("add", Binary("mul", b, idx(4)), w), j)), Load(M, (w, j))
    ),
)


def apart(i: Expr, n: int = 4) -> tuple[Expr, Expr]:
    return Binary("floordiv", i, idx(n)), Binary("mod", i, idx(n))


def reader(name: str, n: int = 4) -> Compute:
    return compute(
        Tensor(name, (12, 5), F32),
        lambda i, j: Unary("tanh", Load(ADDED.out, (*apart(i, n), j))),
    )


def test_what_all_readers_put_together_is_one_dimension() -> None:
    program = Program(
        (X, M), (), (ADDED, reader("a"), reader("b")), (reader("a").out, reader("b").out)
    )
    new = merge_axes(program)
    verify(new)
    (line,) = show_statement(new.body[0])
    assert line == "y[i0:12, i1:5] f32 = x[i0, i1] + m[i0 % 4, i1]"
    (line,) = show_statement(new.body[1])
    assert line == "a[i0:12, i1:5] f32 = tanh(y[i0, i1])"
    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-4, 4, t.shape).astype(np.float32) for t in (X, M)}
    for mine, right in zip(evaluate(new, values), evaluate(program, values), strict=True):
        np.testing.assert_array_equal(mine, right)
    assert merge_axes(new) is new


def test_what_others_read_in_two_dimensions_or_keep_stays() -> None:
    plain = compute(Tensor("c", (3, 5), F32), lambda b, j: Load(ADDED.out, (b, idx(1), j)))
    for body, outputs in (
        ((ADDED, reader("a"), plain), (reader("a").out, plain.out)),
        ((ADDED, reader("a")), (reader("a").out, ADDED.out)),
    ):
        program = Program((X, M), (), body, outputs)
        assert merge_axes(program) is program


class Windows(nn.Module):
    """Attention within windows, each with its mask, as of Swin Transformers."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1)
        n, heads, rows, keys = scores.shape
        scores = scores.view(n // 4, 4, heads, rows, keys) + mask[None, :, None]
        return F.softmax(scores.view(-1, heads, rows, keys), -1) @ v


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_attention_within_masked_windows_is_whole(target: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(8, 2, 49, 32) for _ in range(3))
    mask = torch.randn(4, 49, 49)
    fast = monotile.compile(Windows(), (q, k, v, mask), target=target, options=Options(cache=False))
    if target == "cpu":
        right = Windows()(*(x.double() for x in (q, k, v, mask)))
        torch.testing.assert_close(fast(q, k, v, mask).double(), right, rtol=1e-4, atol=1e-5)
        return
    steps = (s for n in fast.plan.body if isinstance(n, Stage) for s in n.steps)
    assert any(isinstance(s.method, Attend) for s in steps)
