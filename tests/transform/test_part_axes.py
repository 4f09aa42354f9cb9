"""Dimensions that are one only where they are stored become several."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import monotile
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Binary, Load, Tensor, add, idx, mul
from monotile.ir.printer import show_statement
from monotile.ir.program import Compute, Program, compute
from monotile.ir.verify import verify
from monotile.pipeline import transform
from monotile.transform.layout.part_axes import part_axes

F32 = DType.F32
W, X = Tensor("w", (4, 5, 2, 3), F32), Tensor("x", (5, 2, 3), F32)
# Filters of five channels, each in one row.
ROWS = compute(
    Tensor("rows", (4, 30), F32),
    lambda f, i: Load(
        W,
        (
            f,
            Binary("floordiv", i, idx(6)),
            Binary("floordiv", Binary("mod", i, idx(6)), idx(3)),
            Binary("mod", i, idx(3)),
        ),
    ),
)


def summed() -> Compute:
    return compute(
        Tensor("y", (4,), F32),
        lambda f, c, h, v: Binary(
            "mul",
            Load(ROWS.out, (f, add(add(mul(c, idx(6)), mul(h, idx(3))), v))),
            Load(X, (c, h, v)),
        ),
        reduce=(5, 2, 3),
        combiner="sum",
    )


def test_what_a_sum_takes_apart_has_its_own_dimensions() -> None:
    program = Program((W, X), (), (ROWS, summed()), (summed().out,))
    new = part_axes(program)
    verify(new)
    (line,) = show_statement(new.body[0])
    assert line == "rows[i0:4, i1:5, i2:2, i3:3] f32 = w[i0, i1, i2, i3]"
    (line,) = show_statement(new.body[1])
    assert line == "y[i0:4] f32 = sum(r0:5, r1:2, r2:3) rows[i0, r0, r1, r2] * x[r0, r1, r2]"
    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-4, 4, t.shape).astype(np.float32) for t in (W, X)}
    for mine, right in zip(evaluate(new, values), evaluate(program, values), strict=True):
        np.testing.assert_array_equal(mine, right)
    assert part_axes(new) is new


def test_what_another_reads_in_one_dimension_stays() -> None:
    flat = compute(Tensor("z", (4, 30), F32), lambda f, i: mul(Load(ROWS.out, (f, i)), Load(ROWS.out, (f, i))))  # fmt: skip
    program = Program((W, X), (), (ROWS, summed(), flat), (summed().out, flat.out))
    assert part_axes(program) is program


class Standardised(nn.Module):
    """A convolution with standardised filters (as in NF-ResNets and BiT)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv2d(8, 12, 3, padding=1), nn.Parameter(torch.randn(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.conv.weight
        rows = F.batch_norm(w.reshape(1, 12, -1), None, None, weight=self.gain, training=True)
        return F.conv2d(x, rows.reshape_as(w), self.conv.bias, padding=1)


def test_standardised_filters_keep_their_dimensions() -> None:
    torch.manual_seed(0)
    model, x = Standardised().eval(), torch.randn(2, 8, 6, 5)
    captured = capture(model, (x,))
    program, _ = transform(captured.program, captured.constants, Options())
    assert (1, 12, 8, 3, 3) in {s.out.shape for s in program.body if isinstance(s, Compute)}
    compiled = monotile.compile(model, (x,), target="cpu", options=Options(cache=False))
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
