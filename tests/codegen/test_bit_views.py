"""Tensors seen as another type: the evaluator, the CPU, and the emulator of a GPU beside PyTorch."""

import pytest
import torch

import monotile
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.frontend.against import Of, check

T = torch.Tensor
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SMALL = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def as_integers(x: T) -> tuple[T, ...]:
    return tuple(x.to(f).view(to) for f in FLOATS for to in INTEGERS)


def as_floats(n: T) -> tuple[T, ...]:
    """n: int32. Of bits that are no NaN, whose payload PyTorch's own conversions may change."""
    return ((n & 0x3BFF3BFF).view(torch.float16), (n & 0x3F7F3F7F).view(torch.bfloat16), *(n.view(f).view(n.dtype) for f in FLOATS[2:]))  # fmt: skip


def between_integers(n: T) -> tuple[T, ...]:
    seen = [n.view(to) for to in INTEGERS]
    whole = n.clone()
    whole.view(torch.int8)[:, ::4] = 5
    return (*seen, *(x.view(torch.int64) for x in seen), whole, (n > 0).view(torch.uint8) * 255)


def reciprocal_root(x: T) -> T:
    y = (0x5F3759DF - (x.view(torch.int32) >> 1)).view(torch.float32)
    return y * (1.5 - 0.5 * x * y * y)


def small_floats(x: T) -> tuple[T, ...]:
    """Of all bytes, without NaN, of which only the sign is kept."""
    n = torch.arange(-128, 128, dtype=torch.int8).view(torch.uint8)
    small = [x.to(f) for f in SMALL]
    back = [n.view(f) for f in SMALL]
    wide = [torch.where(y.float().isnan(), 7.0, y.float()) for y in back]
    same = [torch.where(y.float().isnan(), 0, y.view(torch.uint8)) for y in back]
    return (*(y.view(to) for y in small for to in (torch.uint8, torch.int16)), *wide, *same)


def arguments() -> tuple[T, T]:
    torch.manual_seed(0)
    ends = torch.tensor([0.0, -0.0, float("inf"), 1e-40, -3.4e38, 1.0])
    x = torch.cat([torch.randn(3, 34) * 1e3, ends.expand(3, 6)], 1)
    return x, torch.randint(-(2**31), 2**31, (3, 40), dtype=torch.int32)


CASES = [as_integers, as_floats, between_integers, reciprocal_root, small_floats]


@pytest.mark.parametrize("f", CASES)
def test_bits(f: object) -> None:
    assert callable(f)
    x, n = arguments()
    x = n if f in (as_floats, between_integers) else x.abs() if f is reciprocal_root else x
    check(Of(f), (x,))
    found, wanted = monotile.compile(f, (x,), target="cpu")(x), f(x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("f", CASES)
def test_bits_on_a_gpu(f: object) -> None:
    assert callable(f)
    x, n = arguments()
    x = n if f in (as_floats, between_integers) else x.abs() if f is reciprocal_root else x
    found, wanted = Emulated(Of(f), (x,), workers=2)(x), f(x)
    for one, right in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(one, right)
