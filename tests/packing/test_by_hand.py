"""Weights packed as repositories do it by hand: decoded where they are multiplied, and stored nowhere."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import monotile
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute, statements
from monotile.pipeline import transform
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide

N, K = 64, 128


class Packed(nn.Module):
    """x @ decode(self).T; a weight is [N, K]."""

    def __init__(self, decode: "Callable[[Packed], Tensor]", **buffers: Tensor) -> None:
        super().__init__()
        self.decode = decode
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.decode(self).to(x.dtype))


def bytes_of(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def words_of(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


def bits() -> Packed:
    """1 bit, by a range of shifts."""

    def decode(m: Packed) -> Tensor:
        one = (m.codes[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
        return (one.view(N, K).half() * 2 - 1) * m.scale

    return Packed(decode, codes=bytes_of(N, K // 8), scale=torch.rand(N, 1).half())


def interleaved() -> Packed:
    """AWQ: 4 bits, eight outputs in a word, in another order; zeros alike."""

    def decode(m: Packed) -> Tensor:
        shifts = torch.arange(0, 32, 4)
        q = (m.codes[:, :, None] >> shifts).to(torch.int8).view(K, -1)
        z = (m.zeros[:, :, None] >> shifts).to(torch.int8).view(K // 32, -1)
        order = torch.arange(N).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(-1)
        q, z = q[:, order] & 15, z[:, order] & 15
        return ((q - z.repeat_interleave(32, 0)) * m.scale.repeat_interleave(32, 0)).t()

    scale = torch.rand(K // 32, N).half()
    return Packed(decode, codes=words_of(K, N // 8), zeros=words_of(K // 32, N // 8), scale=scale)


def assigned_rows() -> Packed:
    """BitNet in transformers: 2 bits, of which each quarter of the rows has its own, assigned to slices."""

    def decode(m: Packed) -> Tensor:
        n = N // 4
        out = torch.zeros((N, K), dtype=torch.uint8)
        for i in range(4):
            out[i * n : (i + 1) * n] = (m.codes & (3 << 2 * i)) >> (2 * i)
        return (out.half() - 1) * m.scale

    return Packed(decode, codes=bytes_of(N // 4, K), scale=torch.rand(1).half())


def words_in_tenths() -> Packed:
    """HQQ: ten 3-bit codes in a word, each from another tenth of the groups, the last of which is cut off."""
    groups = N * K // 16

    def decode(m: Packed) -> Tensor:
        step = m.codes.shape[0]
        out = torch.empty((10 * step, 16), dtype=torch.float16)
        for i in range(10):
            out[i * step : (i + 1) * step] = (m.codes >> (27 - 3 * i)) & 7
        return ((out[:groups] - m.zero) * m.scale).view(N, K)

    zero, scale = torch.rand(groups, 1).half() * 7, torch.rand(groups, 1).half()
    return Packed(decode, codes=words_of(-(-groups // 10), 16), zero=zero, scale=scale)


def codebooks() -> Packed:
    """AQLM: sums of vectors of two codebooks."""

    def decode(m: Packed) -> Tensor:
        codes = m.codes.long() % 256 + torch.tensor([0, 256])
        rows = F.embedding_bag(codes.flatten(0, -2), m.books, mode="sum")
        return rows.view(N, K) * m.scale

    codes = torch.randint(-128, 128, (N, K // 8, 2), dtype=torch.int8)
    return Packed(decode, codes=codes, books=torch.randn(512, 8).half(), scale=torch.rand(N, 1).half())  # fmt: skip


def planes() -> Packed:
    """Four planes of bits, which together are positions in a table of each row."""

    def decode(m: Packed) -> Tensor:
        plane = (m.codes[..., None] >> torch.arange(32, dtype=torch.int32)) & 1
        at = (plane.view(4, N, K) * (2 ** torch.arange(4))[:, None, None]).sum(0)
        return torch.gather(m.table, 1, at)

    return Packed(decode, codes=words_of(4, N, K // 32), table=torch.randn(N, 16).half())


def two_widths() -> Packed:
    """EXL2: 4 bits for one half of the inputs, 2 for the other, in another order."""

    def decode(m: Packed) -> Tensor:
        a = (m.four[:, None] >> torch.arange(0, 32, 4, dtype=torch.int32)[:, None]) & 15
        b = (m.two[:, None] >> torch.arange(0, 32, 2, dtype=torch.int32)[:, None]) & 3
        a, b = a.reshape(K // 2, N) - 8, b.reshape(K // 2, N) - 2
        return torch.cat([a.half() * m.scale[0], b.half() * m.scale[1]])[m.order].t()

    order, scale = torch.randperm(K), torch.rand(2, N).half()
    return Packed(decode, four=words_of(K // 16, N), two=words_of(K // 32, N), scale=scale, order=order)  # fmt: skip


def floats_of_6_bits() -> Packed:
    """e3m2, four in three bytes, moved to where float16 has them."""

    def decode(m: Packed) -> Tensor:
        b = m.codes.view(N, K // 4, 3).int()
        word = b[..., 0] | (b[..., 1] << 8) | (b[..., 2] << 16)
        q = (word[..., None] >> torch.tensor([0, 6, 12, 18], dtype=torch.int32)) & 63
        half = ((q >> 5) << 15) | (((q >> 2) & 7) << 10) | ((q & 3) << 8)
        return half.to(torch.int16).view(torch.float16).view(N, K) * 4096.0 * m.scale

    return Packed(decode, codes=bytes_of(N, K // 4 * 3), scale=torch.rand(N, 1).half())


def floats_as_bytes() -> Packed:
    """e4m3, whose bytes are uint8, with exponents as float8_e8m0fnu."""

    def decode(m: Packed) -> Tensor:
        exponents = m.exponents.view(torch.float8_e8m0fnu).float().repeat_interleave(32, 1)
        return m.codes.view(torch.float8_e4m3fn).float() * exponents

    codes = (torch.randn(N, K) * 10).to(torch.float8_e4m3fn).view(torch.uint8)
    return Packed(decode, codes=codes, exponents=torch.randint(118, 130, (N, K // 32), dtype=torch.uint8))  # fmt: skip


STYLES = [
    bits, interleaved, assigned_rows, words_in_tenths, codebooks, planes, two_widths, floats_of_6_bits,
    floats_as_bytes,
]  # fmt: skip


def made(style: Callable[[], Packed], rows: int) -> tuple[Packed, Tensor, Tensor]:
    """The model, its argument and its exact result."""
    torch.manual_seed(0)
    model = style().eval()
    x = torch.randn(rows, K).half()
    return model, x, x.double() @ model.decode(model).half().double().t()


def close(found: Tensor, right: Tensor) -> None:
    assert found.dtype is torch.float16
    assert (found.double() - right).norm() <= 1e-3 * right.norm()


@pytest.mark.parametrize("style", STYLES)
def test_products_decode(style: Callable[[], Packed]) -> None:
    model, x, right = made(style, 3)
    found = capture(model, (x,))
    program, _ = transform(found.program, found.constants, monotile.Options())
    computed = [s for s in statements(program.body) if isinstance(s, Compute)]
    assert max(math.prod(s.out.shape) for s in computed) < N * K // 4
    close(monotile.compile(model, (x,), target="cpu")(x), right)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("rows", [1, wide(24)])
@pytest.mark.parametrize("style", STYLES)
def test_products_decode_on_a_gpu(style: Callable[[], Packed], rows: int) -> None:
    model, x, right = made(style, rows)
    (found,) = Emulated(model, (x,))(x)
    close(found, right)
