"""Streamed weights that are stored as codes, on the emulator against PyTorch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import monotile
from monotile.choice.chooser import MODEL, Chooser, Prefer
from monotile.kernels.gemv.method import GemvMma
from monotile.plan.walk import stages_in
from monotile.schedule import rows as cut_rows
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.test_gemv_emulated import SMALL
from tests.conftest import wide
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Coded(nn.Module):
    """A linear layer whose weight `decode` makes of what its buffers hold."""

    def __init__(self, kind: str, n: int, k: int, group: int) -> None:
        super().__init__()
        self.group = group
        self.decode = FORMATS[kind]
        self.kind = kind
        per = {"int2": 4, "bits": 8, "int8": 1, "int8 a row": 1, "odd": 1, "looked up": 1}.get(
            kind, 2
        )
        low, high, dtype = (-128, 128, torch.int8) if per == 1 else (0, 256, torch.uint8)
        self.register_buffer("codes", torch.randint(low, high, (n, k // per), dtype=dtype))
        self.register_buffer("scale", 0.1 + torch.rand(n, k // group))
        self.register_buffer("zero", torch.randint(0, 16, (n, k // group), dtype=torch.uint8))
        self.register_buffer("table", torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.decode(self, x.dtype))


def unpacked(codes: Tensor, bits: int) -> Tensor:
    parts = [(codes >> (bits * i)) & (2**bits - 1) for i in range(8 // bits)]
    return torch.stack(parts, -1).flatten(-2)


def scaled(m: Coded, x: Tensor) -> Tensor:
    return (x.unflatten(1, (-1, m.group)) * m.scale.to(x.dtype)[..., None]).flatten(1)


def int4(m: Coded, dtype: torch.dtype) -> Tensor:
    return scaled(m, (unpacked(m.codes, 4).to(torch.int8) - 8).to(dtype))


def asymmetric(m: Coded, dtype: torch.dtype) -> Tensor:
    zero = m.zero.to(torch.int8).repeat_interleave(m.group, 1)
    return scaled(m, (unpacked(m.codes, 4).to(torch.int8) - zero).to(dtype))


def nf4(m: Coded, dtype: torch.dtype) -> Tensor:
    found = m.table[unpacked(m.codes, 4).long()].unflatten(1, (-1, m.group))
    return (found * m.scale[..., None]).flatten(1).to(dtype)


def floats(m: Coded, dtype: torch.dtype) -> Tensor:
    codes = unpacked(m.codes, 4).to(dtype).unflatten(1, (-1, m.group))
    return ((codes - m.zero.to(dtype)[..., None]) * m.scale.to(dtype)[..., None]).flatten(1)


def sums(m: Coded, dtype: torch.dtype) -> Tensor:
    codes = unpacked(m.codes, 4).to(dtype).unflatten(1, (-1, m.group))
    return (codes * m.scale.to(dtype)[..., None] + m.scale.to(dtype)[..., None]).flatten(1)


def high_first(m: Coded, dtype: torch.dtype) -> Tensor:
    parts = torch.stack((m.codes // 16, m.codes % 16), -1).flatten(-2)
    return scaled(m, (parts.to(torch.int8) - 8).to(dtype))


def odd(m: Coded, dtype: torch.dtype) -> Tensor:
    """Numbers that are no straight line of the codes."""
    codes = m.codes.to(torch.int16)
    return scaled(m, (codes * codes % 17).to(dtype))


def looked_up(m: Coded, dtype: torch.dtype) -> Tensor:
    """By what is no straight line of the codes."""
    codes = m.codes.long()
    return scaled(m, m.table[codes * codes % 16].to(dtype))


def small_floats(m: Coded, dtype: torch.dtype) -> Tensor:
    """The bits of e2m1, moved to where float32 has them."""
    codes = unpacked(m.codes, 4).to(torch.int32)
    bits = (codes & 8) << 28 | (codes & 7) << 22
    return scaled(m, (bits.view(torch.float32) * 2.0**126).to(dtype))


FORMATS: dict[str, Callable[[Coded, torch.dtype], Tensor]] = {
    "int8": lambda m, dtype: scaled(m, m.codes.to(dtype)),
    "int8 a row": lambda m, dtype: m.codes.to(dtype) * m.scale[:, :1].to(dtype),
    "int4": int4,
    "asymmetric": asymmetric,
    "floats": floats,
    "sums": sums,
    "nf4": nf4,
    "high first": high_first,
    "int2": lambda m, dtype: scaled(m, (unpacked(m.codes, 2).to(torch.int8) - 2).to(dtype)),
    "bits": lambda m, dtype: scaled(m, (2 * unpacked(m.codes, 1).to(torch.int8) - 1).to(dtype)),
    "odd": odd,
    "looked up": looked_up,
    "small floats": small_floats,
}


class Chain(nn.Module):
    """Three such layers, one after the other."""

    def __init__(self, kind: str, width: int, inner: int, group: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = Coded(kind, inner, width, group), Coded(kind, width, inner, group)
        self.last = Coded(kind, 72, width, group)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.up(x) / 64)
        return self.last(F.silu(self.down(h) / 64) + x)


def methods(fast: Emulated) -> list[GemvMma]:
    steps = (s for stage in stages_in(fast.plan.body) for s in stage.steps)
    return [s.method for s in steps if isinstance(s.method, GemvMma)]


def check(model: nn.Module, x: Tensor, workers: int = 3, chooser: Chooser = MODEL) -> Emulated:
    """Compiles `model`, and compares with float64 sums of what PyTorch decodes."""
    fast = Emulated(model, (x,), workers, target=SMALL, chooser=chooser)
    right = exact(model, (x,))
    with torch.no_grad():
        theirs = error(model(x), right)
    for seed in (1, 2):
        assert error(fast(x, seed=seed), right) <= 1.5 * theirs + 1e-7
    return fast


TYPES = pytest.mark.parametrize("dtype", [torch.float16, wide(torch.bfloat16)], ids=["f16", "bf16"])
MODES = {  # with scales in float32, and in the type of the rest
    "int8": ("codes", "pairs"), "int8 a row": ("codes", "pairs"), "int4": ("codes", "pairs"), "asymmetric": ("codes", "codes"), "floats": ("codes", "pairs"),
    "sums": ("codes", "pairs"), "nf4": ("codes", "codes"), "high first": ("codes", "pairs"), "int2": ("codes", "pairs"), "bits": ("codes", "pairs"), "odd": ("elements", "elements"),
    "looked up": ("elements", "elements"), "small floats": ("codes", "pairs"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("scales", "dtype"),
    [("float32", torch.float16), wide("same", torch.bfloat16), wide("float32", torch.bfloat16), wide("same", torch.float16)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_streams(kind: str, scales: str, dtype: torch.dtype) -> None:
    model = Chain(kind, 256, 384, 128).eval()
    model = model.to(dtype) if scales == "same" else model
    fast = check(model, torch.randn(1, 256).to(dtype))
    assert [m.decode for m in methods(fast)] == 3 * [MODES[kind][scales == "same"]]


@TYPES
@pytest.mark.parametrize("kind", FORMATS)
def test_decoding_is_exact(kind: str, dtype: torch.dtype) -> None:
    """Vectors with a single one take columns out of the matrix."""
    torch.manual_seed(3)
    model = Coded(kind, 40, 512, 64).to(dtype).eval()
    fast = Emulated(model, (torch.zeros(8, 512, dtype=dtype),), target=SMALL)
    assert methods(fast)
    for _ in range(3):
        x = torch.eye(512)[torch.randint(0, 512, (8,))].to(dtype)
        if kind == "sums":  # PyTorch rounds twice
            right = model.double()(x.double()).to(dtype)
            model.to(dtype)
        else:
            right = model(x)
        torch.testing.assert_close(fast(x)[0], right, rtol=0, atol=0)


PACKED = (
    "int8",
    "int4",
    "int4 asymmetric",
    "int2",
    "int1",
    "nf4",
    "fp8",
    "fp8_e5m2",
    "mxfp4",
    "mxfp8",
)


@TYPES
@pytest.mark.parametrize("name", PACKED)
def test_packed_layers_stream(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    layers = [nn.Linear(256, 384), nn.SiLU(), nn.Linear(384, 128, bias=False)]
    kind, _, asymmetric = name.partition(" ")
    model = monotile.pack(nn.Sequential(*layers).to(dtype), kind, symmetric=not asymmetric)
    fast = check(model.eval().requires_grad_(False), torch.randn(2, 256).to(dtype))
    assert len(methods(fast)) == 2


@pytest.mark.parametrize("vectors", [2, wide(3), wide(8), 9, 16])
def test_several_vectors(vectors: int) -> None:
    model = Chain("int4", 256, 384, 128).half().eval()
    fast = check(model, torch.randn(vectors, 256).half())
    assert len(methods(fast)) == 3


# Two workers have so few rows that other ways are as fast.
STREAMED = Prefer("split", lambda parts: parts == 1, Prefer("cut", lambda way: "gemv_mma" in str(way)))  # fmt: skip


class Activated(nn.Module):
    """A layer of what has to be computed first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.silu(x))


@pytest.mark.parametrize(
    ("kind", "vectors", "rows", "activated"),
    [("int4", 16, 72, False), ("int4", 9, 40, True), ("int2", 16, 33, False), wide("int8", 12, 40, False), wide("nf4", 16, 24, False), ("odd", 9, 24, False)],
)  # fmt: skip
def test_vectors_that_do_not_fit_on_chip(
    monkeypatch: pytest.MonkeyPatch, kind: str, vectors: int, rows: int, activated: bool
) -> None:
    monkeypatch.setattr(cut_rows, "FEW", 0)  # else a task may compute all vectors itself
    torch.manual_seed(7)
    layer = Coded(kind, rows, 4096, 128)
    model = (Activated(layer) if activated else layer).half().eval()
    fast = check(model, torch.randn(vectors, 4096).half(), 2, STREAMED)
    assert [m.vectors for m in methods(fast)] == ["memory"]


def test_too_many_vectors_are_tiled() -> None:
    model = Coded("int4", 72, 256, 128).half().eval()
    assert not methods(check(model, torch.randn(17, 256).half()))


@pytest.mark.parametrize(
    ("columns", "rows", "group"),
    [(64, 128, 32), (320, 1000, 64), wide(2048, 33, 128), wide(4096, 24, 128), (4096 + 256, 17, 256), wide(11008, 9, 32)],
)  # fmt: skip
def test_shapes(columns: int, rows: int, group: int) -> None:
    torch.manual_seed(2)
    model = Coded("int4", rows, columns, group).bfloat16().eval()
    fast = check(model, torch.randn(1, columns).bfloat16(), workers=2)
    assert methods(fast)


@pytest.mark.parametrize(
    ("kind", "scales", "columns", "group", "vectors"),
    [
        ("int4", "same", 2048, 128, [16]), ("int4", "same", 12288, 128, [16]), ("int4", "same", 1280, 128, [4]), ("int4", "float32", 640, 128, [4]),
        ("asymmetric", "same", 1024, 128, [8, 16]), ("int8 a row", "float32", 512, 128, [4]), ("int8 a row", "same", 512, 128, [None]), ("nf4", "float32", 256, 64, [16]),
    ],
)  # fmt: skip
def test_what_decoding_reads_comes_with_the_codes(
    kind: str, scales: str, columns: int, group: int, vectors: list[int | None]
) -> None:
    """Where a row has whole words of it; else the supplier asks for it, as for tables."""
    torch.manual_seed(6)
    model = Coded(kind, 150, columns, group).eval()
    model = model.half() if scales == "same" else model
    fast = check(model, torch.randn(1, columns).half(), workers=2)
    (method,) = methods(fast)
    assert {s.vector if s else None for s in method.sides} == set(vectors)
    assert ("request(" in fast.source.text) == (None in vectors or kind == "nf4")


@pytest.mark.parametrize(
    ("kind", "scales", "columns", "group", "rows"),
    [
        ("int4", "same", 2880, 64, 150), ("asymmetric", "same", 896, 128, 77), wide("sums", "same", 1152, 128, 150), wide("high first", "same", 832, 64, 33),
        ("int4", "same", 45 * 256, 256, 150),
    ],
)  # fmt: skip
def test_scales_that_are_not_aligned(
    kind: str, scales: str, columns: int, group: int, rows: int
) -> None:
    """They come as they lie, from the vector where a row's begin."""
    torch.manual_seed(8)
    model = Coded(kind, rows, columns, group).eval()
    model = model.half() if scales == "same" else model
    fast = check(model, torch.randn(1, columns).half(), workers=2)
    (method,) = methods(fast)
    assert any(s and not s.aligned for s in method.sides)
    assert (method.pieces > 1) is (columns > 10000)


@pytest.mark.parametrize(
    ("kind", "columns", "vectors"),
    [("int4", 2880, 1), ("nf4", 1376, 9), wide("odd", 208, 1), wide("int4", 672, 4), wide("small floats", 1248, 16)],
)  # fmt: skip
def test_rows_that_end_within_a_block(kind: str, columns: int, vectors: int) -> None:
    """The last block has fewer runs than lanes."""
    torch.manual_seed(9)
    model = Coded(kind, 150, columns, 32 if kind != "odd" else 16).half().eval()
    fast = check(model, torch.randn(vectors, columns).half(), workers=2)
    (method,) = methods(fast)
    assert method.piece // method.run % 4


def test_infinite_weights_where_a_row_ends() -> None:
    """Lanes without a run take no part in the sum, whatever their neighbours' weights are."""
    torch.manual_seed(10)
    model = Coded("int4", 150, 1248, 32).half().eval()
    model.scale[7, -1] = torch.inf
    x = torch.full((1, 1248), 0.5).half()
    model.codes[7, -16:] = 0xFF
    right = model(x)
    assert right[0, 7] == torch.inf
    (got,) = Emulated(model, (x,), 2, target=SMALL)(x)
    torch.testing.assert_close(got, right, rtol=4e-3, atol=0.5)


class Rolled(nn.Module):
    """Many layers alike, with biases, gates and residuals."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.gates = nn.ModuleList(Coded("int4", 384, 256, 128) for _ in range(layers))
        self.ups = nn.ModuleList(Coded("int4", 384, 256, 128) for _ in range(layers))
        self.downs = nn.ModuleList(Coded("int4", 256, 384, 128) for _ in range(layers))
        self.bias = nn.ParameterList(torch.randn(256) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for gate, up, down, bias in zip(self.gates, self.ups, self.downs, self.bias, strict=True):
            h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
            x = x + down(F.silu(gate(h) / 64) * (up(h) / 64)) + bias
        return x


def test_layers_in_a_loop() -> None:
    fast = check(Rolled(5).half().eval(), torch.randn(1, 256).half())
    assert 0 < len(methods(fast)) <= 3
