"""8-bit floats in captured models: casts and moved data, against PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from monotile.errors import UnsupportedOperatorError
from monotile.frontends.torch.capture import capture
from tests.frontend.against import Operators, check_operators
from tests.ir.float8 import TYPES, sweep

FLOAT8 = tuple(getattr(torch, t.value) for t in TYPES)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_casts(dtype: torch.dtype) -> None:
    """What is too large for float8_e4m3fn is what this PyTorch makes of it."""
    wide = torch.from_numpy(sweep(1000))
    wide = wide[~wide.isnan()]
    check_operators(
        {
            "from_f32": lambda c, x, i: x.to(dtype).float(),
            "from_f64": lambda c, x, i: x.double().to(dtype).float(),
            "from_f16": lambda c, x, i: x.half().to(dtype).float(),
            "from_bf16": lambda c, x, i: x.bfloat16().to(dtype).float(),
            "from_int": lambda c, x, i: i.to(dtype).float(),
            "from_bool": lambda c, x, i: (i > 0).to(dtype).float(),
            "float": lambda c, x, i: c.float(),
            "half": lambda c, x, i: c.half(),
            "double": lambda c, x, i: c.double(),
            "bool": lambda c, x, i: c.bool(),
            "int": lambda c, x, i: c[60:68].to(torch.int32),
            "copy": lambda c, x, i: torch.zeros(4, dtype=dtype).copy_(x[:4]).float(),
            "copy_out": lambda c, x, i: torch.zeros(256).copy_(c),
            **{str(t): lambda c, x, i, t=t: c.to(t).float() for t in FLOAT8},
        },
        torch.arange(256, dtype=torch.uint8).view(dtype),
        wide,
        torch.tensor([-1000, -3, 0, 1, 17, 449, 70000]),
    )


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_moved_data(dtype: torch.dtype) -> None:
    codes = torch.arange(240, dtype=torch.uint8) % 120  # no NaN
    check_operators(
        {
            "cat": lambda c, m, i: torch.cat([c, c]),
            "stack": lambda c, m, i: torch.stack([c, c.flip(0)]),
            "index": lambda c, m, i: c[i],
            "index_select": lambda c, m, i: c.index_select(1, i),
            "embedding": lambda c, m, i: F.embedding(i, c),
            "where": lambda c, m, i: torch.where(m, c, c.roll(1, 0)),
            "transpose": lambda c, m, i: c.t().contiguous(),
            "repeat": lambda c, m, i: c.repeat(2, 1),
            "slice_scatter": lambda c, m, i: torch.slice_scatter(c, c[:1], 0, 3, 4),
            "ones": lambda c, m, i: torch.ones(3, dtype=dtype),
            "zeros": lambda c, m, i: torch.zeros_like(c),
            "equal": lambda c, m, i: c == c.roll(1, 0),
            "isnan": lambda c, m, i: c.isnan(),
        },
        codes.view(dtype).view(20, 12),
        torch.rand(20, 12) > 0.5,
        torch.tensor([7, 0, 7]),
    )


def test_updates_in_place() -> None:
    """Where PyTorch has them: it puts none of float8_e8m0fnu."""
    for dtype in FLOAT8[:2]:
        x = torch.arange(12.0).view(4, 3).to(dtype)
        check_operators({"put": lambda a, i: a.clone().index_put_((i,), a[:2])}, x, torch.tensor([2, 0]))  # fmt: skip


def test_sums_in_place_are_refused() -> None:
    """They would round at every step."""
    model = Operators({"add": lambda a, i: a.index_put((i,), a[:2], accumulate=True)})
    x = torch.ones(4, 3).to(torch.float8_e5m2)
    with pytest.raises(UnsupportedOperatorError, match="sum of float8_e5m2 in place"):
        capture(model, (x, torch.tensor([2, 0])))
