"""Products of quantised matrices, and operators that quantise, against PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn
from torch._higher_order_ops.out_dtype import out_dtype

import monotile
from monotile.errors import CaptureError, UnsupportedOperatorError
from monotile.frontends.torch.capture import capture
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.frontend import sized
from tests.frontend.against import Operators, check, check_operators, run

aten, decomposed = torch.ops.aten, torch.ops.quantized_decomposed
I8, U8, E4, E5 = torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def ints(*shape: int, dtype: torch.dtype = I8) -> Tensor:
    low = 0 if dtype is U8 else -128
    return torch.randint(low, low + 256, shape, dtype=dtype)


def _computes(product: Callable[[], object]) -> bool:
    """Whether this release of PyTorch has it on the CPU."""
    try:
        product()
    except RuntimeError:
        return False
    return True


# PyTorch computes these on a CPU from 2.12 on.
UNSIGNED = U8 if _computes(lambda: torch._int_mm(ints(17, 32, dtype=U8), ints(32, 24))) else I8
SCALED_ROWS = _computes(
    lambda: torch._scaled_mm(
        torch.zeros(16, 32, dtype=E4),
        torch.zeros(48, 32, dtype=E4).t(),
        torch.ones(16, 1),
        torch.ones(1, 48),
    )
)


class IntProducts(nn.Module):
    def forward(self, a: Tensor, u: Tensor, w: Tensor) -> Any:
        plain = out_dtype(aten.mm.default, torch.int32, a, w.t())
        return torch._int_mm(a, w.t()), torch._int_mm(u, w.t()), plain


def test_sums_of_integers_are_exact() -> None:
    """Also beyond what float32 holds exactly."""
    a, u, w = ints(17, 2048), ints(17, 2048, dtype=UNSIGNED), ints(24, 2048)
    a[0], u[0], w[0] = -128, torch.iinfo(UNSIGNED).max, -128
    a[0, 0] = -127
    captured = check(IntProducts(), (a, u, w))
    assert all(t.dtype.value == "int32" for t in captured.program.outputs)
    fast = monotile.compile(IntProducts(), (a, u, w), target="cpu")
    for found, right in zip(fast(a, u, w), IntProducts()(a, u, w), strict=True):
        assert torch.equal(found, right)
    assert abs(int(fast(a, u, w)[0][0, 0])) > 2**24


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_sums_of_integers_on_the_emulator() -> None:
    a, u, w = ints(17, 256), ints(17, 256, dtype=UNSIGNED), ints(24, 256)
    for found, right in zip(Emulated(IntProducts(), (a, u, w))(a, u, w), IntProducts()(a, u, w), strict=True):  # fmt: skip
        assert torch.equal(found, right)


def test_scaled_products_of_8_bit_floats() -> None:
    x, y = torch.randn(16, 32).to(E4), torch.randn(48, 32).to(E4)
    one, rows, columns = torch.tensor(0.37), torch.rand(16, 1), torch.rand(1, 48)
    bias = torch.randn(48)

    def scaled(**more: Any) -> Callable[..., Tensor]:
        return lambda x, y, one, r, c, b: torch._scaled_mm(x, y.t(), one, one, **more)

    of_rows = {
        "rows": lambda x, y, one, r, c, b: torch._scaled_mm(x, y.t(), r, c, out_dtype=torch.bfloat16),
        "bias": lambda x, y, one, r, c, b: torch._scaled_mm(
            x, y.t(), r, c, bias=b.half(), out_dtype=torch.float16, use_fast_accum=True
        ),
        "e5m2": lambda x, y, one, r, c, b: torch._scaled_mm(x.float().to(E5), y.t(), r, c, out_dtype=torch.float32),
    }  # fmt: skip
    of_tensors = {"f32": scaled(out_dtype=torch.float32), "bf16": scaled(out_dtype=torch.bfloat16)}
    check_operators(of_tensors | (of_rows if SCALED_ROWS else {}), x, y, one, rows, columns, bias)


def test_scaled_products_to_8_bit_floats() -> None:
    """As a GPU has them, rounded once and within what the type holds: what PyTorch makes of them on a CPU depends on the processor."""
    x, y, scale = torch.randn(16, 32).to(E4), torch.randn(48, 32).to(E4), torch.tensor(0.37)
    for times in (1, 999):
        args = (x, y, scale * times)
        captured = capture(Operators({"y": lambda x, y, s: torch._scaled_mm(x, y.t(), s, s)}), args)
        (found,) = run(captured, args, {})
        exact = x.double() @ y.double().t() * (scale * times).double() ** 2
        exact = exact.clamp(-448, 448)
        error = (torch.from_numpy(found.astype(np.float64)) - exact).abs()
        assert (error <= exact.abs() / 16 + 2**-10).all()


class TensorCores(nn.Module):
    """8 bits, as tensor cores take them: exactly, in 16."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("floats", torch.randn(64, 128).to(E4))
        self.register_buffer("ints", ints(64, 128))
        self.register_buffer("scale", torch.rand(64) / 64)

    def forward(self, x: Tensor) -> Any:
        one = self.scale[0].reshape(())
        scaled = torch._scaled_mm(x.to(E4), self.floats.t(), one, one, out_dtype=torch.bfloat16)
        return scaled, torch._weight_int8pack_mm(x, self.ints, self.scale.bfloat16())


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_8_bits_on_tensor_cores() -> None:
    model, x = TensorCores(), torch.randn(64, 128).bfloat16()
    fast = Emulated(model, (x,))
    assert "".join(s.method.describe() for stage in stages_in(fast.plan.body) for s in stage.steps).count("mma") == 2  # fmt: skip
    for found, right in zip(fast(x), model(x), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-2, atol=1e-3)


def test_scaled_products_that_are_refused() -> None:
    x, y = torch.randn(16, 32).to(E4), torch.randn(48, 32).to(E4)
    one = torch.tensor(0.37)
    refused = {
        "scale_result": lambda x, y, s: torch._scaled_mm(x, y.t(), s, s, scale_result=s, out_dtype=E4),
    }  # fmt: skip
    for said, f in refused.items():
        with pytest.raises(UnsupportedOperatorError, match=rf"_scaled_mm.*{said}"):
            monotile.compile(Operators({"f": f}), (x, y, one), target="cpu")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_weights_of_8_bits(dtype: torch.dtype) -> None:
    x, w, scales = torch.randn(5, 64).to(dtype), ints(48, 64), (torch.rand(48) / 64).to(dtype)
    check_operators({"f": torch._weight_int8pack_mm}, x, w, scales)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [16, 64, 80, 144])
def test_weights_of_4_bits_on_the_cpu(rows: int, dtype: torch.dtype) -> None:
    codes = torch.randint(0, 16, (rows, 64), dtype=torch.int32)
    packed = aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    x, pairs = torch.randn(5, 64).to(dtype), (torch.randn(2, rows, 2) / 8).to(dtype)
    check_operators(
        {"f": lambda x, w, p: aten._weight_int4pack_mm_for_cpu(x, w, 32, p)}, x, packed, pairs
    )


def tiles(codes: Tensor, inner: int) -> Tensor:
    """`_convert_weight_to_int4pack` of a GPU, a lane of mma.m16n8k16 at a time."""
    n, k = codes.shape
    out = torch.zeros(n // 8, k // (16 * inner), 32, inner // 2, dtype=torch.int64)
    lanes = torch.arange(32)
    for row in range(n // 8):
        for word in range(k // 32):
            first = 32 * word + lanes % 4 * 2
            columns = [first + step for step in (0, 8, 16, 24, 1, 9, 17, 25)]
            bits = sum(
                codes[8 * row + lanes // 4, c].long() << 4 * i for i, c in enumerate(columns)
            )
            out[row, word // (inner // 2), :, word % (inner // 2)] = bits  # type: ignore[assignment]
    return out.to(torch.int32)


class Tiles(nn.Module):
    def forward(self, x: Tensor, packed: Tensor, pairs: Tensor) -> Tensor:
        return aten._weight_int4pack_mm(x, packed, 32, pairs)


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_weights_of_4_bits_in_tiles(inner: int) -> None:
    """What PyTorch has for GPUs alone, on any target. Each weight is rounded, as there."""
    codes = torch.randint(0, 16, (24, 256), dtype=torch.int32)
    x, pairs = torch.randn(4, 256).bfloat16(), torch.randn(8, 24, 2).bfloat16()
    scale, zero = (pairs[..., k].double().repeat_interleave(32, 0).T for k in range(2))
    weight = ((codes - 8) * scale + zero).bfloat16()
    fast = monotile.compile(Tiles(), (x, tiles(codes, inner), pairs), target="cpu")
    right = (x.double() @ weight.double().T).bfloat16()
    torch.testing.assert_close(fast(x, tiles(codes, inner), pairs), right, rtol=1e-2, atol=1e-2)


def test_weights_of_mslk() -> None:
    """Its plain layout: two codes a byte, the even column low; value = code * scale + zero."""
    library = torch.library.Library("mslk", "DEF")
    library.define("bf16i4bf16_rowwise(Tensor X, Tensor WQ, Tensor scale, Tensor zero) -> Tensor")
    library.impl("bf16i4bf16_rowwise", lambda x, w, s, z: x.new_empty(len(x), len(w)), "Meta")
    codes = torch.randint(-8, 8, (24, 64), dtype=I8)
    packed = (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
    x, scale, zero = (torch.randn(n, m).bfloat16() for n, m in ((3, 64), (2, 24), (2, 24)))
    weight = codes * scale.double().repeat_interleave(32, 0).T + zero.double().repeat_interleave(32, 0).T  # fmt: skip
    f = Operators({"f": torch.ops.mslk.bf16i4bf16_rowwise})
    found = monotile.compile(f, (x, packed, scale, zero), target="cpu")(x, packed, scale, zero)
    right = (x.double() @ weight.bfloat16().double().T).bfloat16()
    torch.testing.assert_close(found["f"], right, rtol=1e-2, atol=1e-2)


def test_one_scale() -> None:
    x, c = torch.randn(6, 64) * 3, ints(6, 64)
    scale, zero = torch.tensor([0.037], dtype=torch.float64), torch.tensor([3])
    low, high = torch.tensor(-128), torch.tensor(127)
    ends = (-128, 127, I8)
    check_operators(
        {
            "numbers": lambda x, c, s, z, a, b: decomposed.quantize_per_tensor(x, 0.0371, 3, *ends),
            "unsigned": lambda x, c, s, z, a, b: decomposed.quantize_per_tensor(x, 0.0371, 128, 0, 255, U8),
            "half": lambda x, c, s, z, a, b: decomposed.quantize_per_tensor(x.half(), 0.0371, 3, *ends),
            "tensors": lambda x, c, s, z, a, b: decomposed.quantize_per_tensor(x, s, z, *ends),
            "ends": lambda x, c, s, z, a, b: decomposed.quantize_per_tensor(x, s, z, a, b, I8),
            "back": lambda x, c, s, z, a, b: decomposed.dequantize_per_tensor(c, 0.0371, 3, *ends),
            "back_half": lambda x, c, s, z, a, b: decomposed.dequantize_per_tensor(c, 0.0371, 3, *ends, out_dtype=torch.half),
            "back_tensors": lambda x, c, s, z, a, b: decomposed.dequantize_per_tensor(c, s, z, *ends),
            "back_bf16": lambda x, c, s, z, a, b: decomposed.dequantize_per_tensor(c, s, z, *ends, out_dtype=torch.bfloat16),
            "back_ends": lambda x, c, s, z, a, b: decomposed.dequantize_per_tensor(c, s, z, a, b, I8),
            "choose": lambda x, c, s, z, a, b: decomposed.choose_qparams(x, -128, 127, 1e-5, I8),
            "choose_half": lambda x, c, s, z, a, b: decomposed.choose_qparams(x.half(), 0, 255, 1e-5, U8),
            "choose_positive": lambda x, c, s, z, a, b: decomposed.choose_qparams(x.abs() + 1, 0, 255, 1e-5, U8),
            "symmetric": lambda x, c, s, z, a, b: decomposed.choose_qparams_symmetric(x, -127, 127, 1e-5, I8),
            "symmetric_u8": lambda x, c, s, z, a, b: decomposed.choose_qparams_symmetric(x.bfloat16(), 0, 255, 1e-5, U8),
        },
        x, c, scale, zero, low, high,
    )  # fmt: skip


def test_scales_of_channels_tokens_and_groups() -> None:
    x, c = torch.randn(6, 64) * 3, ints(6, 64)
    scale, zero = torch.rand(6) + 0.01, torch.randint(-8, 8, (6,))
    groups, zeros = torch.rand(6, 2) + 0.01, torch.randint(-8, 8, (6, 2))
    ends = (-128, 127, I8)
    check_operators(
        {
            "channel": lambda x, c, s, z, g, h: decomposed.quantize_per_channel(x, s, z, 0, *ends),
            "axis": lambda x, c, s, z, g, h: decomposed.quantize_per_channel(x.t().contiguous(), s, z, 1, *ends),
            "back": lambda x, c, s, z, g, h: decomposed.dequantize_per_channel(c, s, z, 0, *ends),
            "no_zero": lambda x, c, s, z, g, h: decomposed.dequantize_per_channel(c, s, None, 0, *ends),
            "choose": lambda x, c, s, z, g, h: decomposed.choose_qparams_per_token(x, I8),
            "choose_zero": lambda x, c, s, z, g, h: decomposed.choose_qparams_per_token_asymmetric(x, I8),
            "token": lambda x, c, s, z, g, h: decomposed.quantize_per_token(x, s[:, None], z[:, None], *ends),
            "back_token": lambda x, c, s, z, g, h: decomposed.dequantize_per_token(
                c, s[:, None].double(), z[:, None], *ends, torch.float32
            ),
            "group": lambda x, c, s, z, g, h: decomposed.quantize_per_channel_group(x, g, h, -8, 7, I8, 32),
            "back_group": lambda x, c, s, z, g, h: decomposed.dequantize_per_channel_group(c, g, h, -8, 7, I8, 32, torch.bfloat16),
        },
        x, c, scale, zero, groups, zeros,
    )  # fmt: skip


class FakeQuantized(nn.Module):
    def __init__(self, *, learnt: bool = False) -> None:
        super().__init__()
        self.learnt = learnt
        self.scale, self.zero = torch.tensor([0.05]), torch.tensor([3], dtype=torch.int32)
        self.scales, self.zeros = torch.rand(5) / 9 + 0.01, torch.randint(-4, 4, (5,)).int()
        self.fractions = torch.randn(5) * 2

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.learnt:
            return (
                torch._fake_quantize_learnable_per_tensor_affine(x, self.scale, self.fractions[:1], -8, 7, 1.0),
                torch._fake_quantize_learnable_per_channel_affine(x, self.scales, self.fractions, 1, -8, 7, 1.0),
            )  # fmt: skip
        of_tensor, of_channels = torch.fake_quantize_per_tensor_affine, torch.fake_quantize_per_channel_affine  # fmt: skip
        return (
            of_tensor(x, 0.1, 2, -8, 7),
            of_tensor(x, self.scale, self.zero, 0, 255),
            of_channels(x, self.scales, self.zeros, 1, -128, 127),
            of_channels(x, self.scales, self.fractions, 1, -8, 7),
        )


def test_fake_quantized() -> None:
    def args(n: int) -> tuple[Tensor, ...]:
        return (torch.randn(n, 5),)

    for learnt in (False, True):
        check(FakeQuantized(learnt=learnt), args(6))
    dim = torch.export.Dim("n", min=1, max=9)
    sized.check(FakeQuantized(), args, ({0: dim},), [(1,), (4,), (9,)])
    with pytest.raises(CaptureError, match=r"test_quantized.*leave the size out of dynamic_shapes"):
        capture(FakeQuantized(learnt=True), args(6), dynamic_shapes=({0: dim},))
