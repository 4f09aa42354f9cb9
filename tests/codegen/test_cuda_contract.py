"""Contractions of the device library over kernels, layouts, copies and ragged edges, on the emulator."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from monotile.analysis.contraction import SUMMED_IN
from monotile.ir.dtype import DType
from monotile.kernels.common.cuda_config import ATTENTION, PRODUCT, SIDE, config
from monotile.kernels.common.operand import Operand
from monotile.kernels.matmul.memory import contract_bytes
from monotile.kernels.matmul.method import Matmul
from tests.codegen.emulate import COMPILER, HEADERS, Launch, launch

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
NAMES = {
    DType.F16: "mt::f16", DType.BF16: "mt::bf16", DType.F32: "float", DType.F64: "double",
    DType.I8: "mt::i8", DType.U8: "mt::u8", DType.F8E4M3: "mt::f8e4m3",
}  # fmt: skip
LIMIT = {DType.F16: 6e-4, DType.BF16: 5e-3, DType.F32: 1e-6, DType.F64: 1e-15}
TF32 = 2.0**-9  # of float32 in one pass


@dataclass(frozen=True)
class Case:
    """left, right: major ("k" or "m"), copy ("a"sync, the same in even steps, "l", or "e"lement), vector, and how many
    chunks are asked for ahead: "ka8", "kl8+2"."""

    dtype: DType
    left: str
    right: str
    m: int
    n: int
    k: int
    block: tuple[int, int, int]
    warps: tuple[int, int, int]
    ring: int
    width: int
    kernel: str = "MMA"
    passes: int = 1
    other: DType | None = None  # of the right operand, if it is not the left one's

    @property
    def types(self) -> tuple[DType, DType]:
        return self.dtype, self.other or self.dtype

    @property
    def result(self) -> DType:
        return SUMMED_IN[self.dtype] if self.dtype.itemsize == 1 else self.dtype

    @property
    def total(self) -> str:
        """The type of a sum."""
        return {D: "double", DType.I32: "int"}.get(self.result, "float")

    @property
    def limit(self) -> float:
        """The largest error, of a sum's absolute terms."""
        if self.result is DType.I32:
            return 0.0
        tf32 = self.dtype is F and self.kernel != "FMA" and self.passes == 1
        return TF32 if tf32 else LIMIT[self.result]

    def __str__(self) -> str:
        kind = "-".join(dict.fromkeys(map(str, self.types)))
        return f"{self.kernel}{self.passes}-{kind}-{self.left}-{self.right}-{self.m}x{self.n}x{self.k}-ring{self.ring}"


H, B, F, D = DType.F16, DType.BF16, DType.F32, DType.F64
I8, U8, F8 = DType.I8, DType.U8, DType.F8E4M3
CASES = (
    Case(H, "ka8", "ka8", 128, 80, 256, (64, 40, 32), (1, 1, 8), 4, 4),
    Case(H, "ka8", "ka8", 64, 48, 512, (32, 24, 64), (1, 1, 8), 3, 8),
    Case(H, "ka8", "ma8", 64, 64, 128, (64, 64, 32), (1, 1, 4), 3, 4),
    Case(H, "ma8", "ka8", 64, 64, 128, (64, 64, 32), (1, 1, 4), 3, 4),
    Case(H, "ma8", "ma8", 96, 40, 128, (48, 40, 32), (1, 1, 4), 2, 4),
    Case(B, "ka8", "ma8", 100, 72, 200, (64, 40, 64), (1, 1, 4), 3, 4),
    Case(B, "ma8", "ka8", 104, 70, 136, (32, 24, 16), (1, 1, 8), 5, 2),
    Case(H, "ka8", "ka8", 130, 130, 96, (128, 128, 32), (2, 4, 1), 3, 2),
    Case(H, "ka8", "ma8", 130, 136, 96, (128, 128, 64), (4, 2, 1), 2, 4),
    Case(H, "ma8", "ma8", 152, 88, 96, (64, 80, 32), (1, 2, 4), 2, 4),
    Case(H, "ka8", "ka8", 77, 33, 40, (32, 16, 16), (2, 1, 2), 1, 1),
    Case(H, "ka4", "ka2", 40, 50, 84, (32, 24, 32), (1, 1, 4), 3, 2),
    Case(H, "ma2", "ma4", 42, 52, 83, (32, 24, 32), (1, 1, 4), 3, 4),
    Case(H, "ke1", "me1", 41, 51, 83, (32, 24, 32), (1, 1, 4), 3, 1),
    Case(H, "ke8", "ka8", 41, 56, 88, (64, 64, 32), (2, 2, 2), 2, 8),
    Case(H, "ka8", "ka8", 128, 80, 256, (64, 80, 64), (4, 1, 2), 3, 4, "WGMMA"),
    Case(B, "ka8", "ka8", 150, 50, 200, (128, 48, 64), (8, 1, 1), 2, 2, "WGMMA"),
    Case(H, "kl8", "kl8+2", 128, 80, 512, (64, 40, 64), (4, 1, 2), 4, 4, "WGMMA"),
    Case(H, "kl8", "kl8+2", 64, 48, 512, (32, 24, 64), (1, 1, 8), 2, 8),
    Case(H, "ml8+2", "kl8", 96, 40, 320, (48, 40, 32), (1, 1, 4), 3, 4),
    Case(B, "kl8", "ml8+2", 100, 72, 200, (64, 40, 64), (1, 1, 4), 5, 4),
    Case(H, "ka8", "ka8+2", 130, 130, 96, (128, 128, 32), (2, 4, 1), 3, 2),
    Case(H, "ke8", "ka8+2", 41, 56, 88, (64, 64, 32), (2, 2, 2), 2, 8),
    Case(H, "ka8", "ke8", 70, 66, 136, (64, 64, 64), (4, 2, 1), 4, 2, "WGMMA"),
    Case(H, "ka8", "ra8", 70, 136, 200, (64, 64, 64), (4, 1, 2), 3, 4, "WGMMA"),
    Case(B, "ka8", "re8", 150, 128, 136, (128, 64, 64), (8, 1, 1), 2, 2, "WGMMA"),
    Case(H, "kl8", "kl8+2", 150, 96, 1000, (128, 96, 64), (8, 1, 1), 4, 4, "WGMMA"),
    Case(H, "ka8", "ra8", 70, 200, 200, (64, 192, 64), (4, 1, 2), 2, 4, "WGMMA"),
    Case(B, "kl8", "rl8+2", 150, 256, 320, (128, 128, 64), (8, 1, 1), 4, 4, "WGMMA"),
    Case(H, "kl8", "rl8", 64, 376, 200, (64, 256, 64), (4, 2, 1), 3, 4, "WGMMA"),
    Case(H, "kl8", "rl8+2", 64, 256, 200, (64, 256, 64), (4, 1, 2), 3, 4, "WGMMA"),
    Case(B, "kl8", "kl8", 140, 250, 200, (128, 256, 64), (8, 1, 1), 4, 2, "WGMMA"),
    Case(H, "ka8", "re8", 64, 192, 136, (64, 192, 64), (4, 1, 2), 2, 2, "WGMMA"),
    Case(H, "kl8", "rl8+2", 96, 200, 320, (96, 192, 64), (2, 4, 1), 4, 4),
    Case(B, "rl8", "kl8", 200, 64, 136, (128, 64, 16), (4, 2, 1), 3, 4),
    Case(I8, "kl16", "kl16", 64, 80, 512, (64, 40, 64), (1, 1, 4), 4, 4),
    Case(I8, "ka4", "ka16", 41, 56, 240, (64, 64, 128), (2, 2, 2), 2, 8),
    Case(U8, "ke4", "ka8+2", 40, 50, 88, (32, 24, 32), (1, 1, 4), 3, 2),
    Case(I8, "kl16", "kl16+2", 150, 90, 1008, (128, 48, 128), (8, 1, 1), 4, 2, "WGMMA"),
    Case(U8, "ka16", "ke4", 70, 66, 400, (64, 64, 128), (4, 2, 1), 3, 2, "WGMMA"),
    Case(U8, "kl16", "kl16", 64, 48, 512, (32, 24, 64), (1, 1, 8), 2, 4, "MMA", 1, I8),
    Case(I8, "kl16", "kl16", 64, 48, 512, (64, 48, 128), (4, 1, 2), 2, 4, "WGMMA", 1, U8),
    Case(F8, "kl16", "kl16", 64, 48, 512, (32, 24, 64), (1, 1, 8), 2, 4),
    Case(F8, "kl16", "kl16+2", 150, 90, 1008, (128, 40, 128), (8, 1, 1), 4, 2, "WGMMA"),
    Case(F8, "kl16", "kl16", 64, 96, 400, (64, 48, 128), (4, 2, 1), 8, 4, "WGMMA"),
    Case(F8, "ke4", "ka16", 70, 66, 400, (64, 64, 128), (4, 1, 2), 3, 2, "WGMMA"),
    Case(F, "kl4", "kl4", 64, 48, 200, (32, 24, 32), (1, 1, 8), 2, 4),
    Case(F, "kl4", "kl4", 64, 48, 200, (32, 24, 32), (1, 1, 8), 2, 4, "MMA", 3),
    Case(F, "ma4", "ka4", 68, 56, 136, (64, 64, 16), (2, 2, 2), 3, 4, "MMA", 3),
    Case(F, "ka2", "rl4+2", 41, 100, 90, (48, 24, 8), (1, 1, 4), 4, 2, "MMA", 3),
    Case(F, "me1", "me2", 40, 50, 83, (32, 24, 32), (1, 1, 4), 3, 1, "MMA", 3),
    Case(F, "ke1", "ra4", 41, 136, 83, (64, 128, 16), (2, 4, 1), 3, 4),
    Case(F, "kl4", "kl4+2", 150, 90, 200, (128, 40, 32), (8, 1, 1), 4, 2, "WGMMA"),
    Case(F, "ka4", "ka4", 50, 50, 128, (32, 32, 32), (1, 1, 8), 3, 2, "FMA"),
    Case(F, "ma4", "ma4", 68, 68, 90, (64, 64, 16), (1, 1, 4), 2, 4, "FMA"),
    Case(F, "ka4", "ma4", 64, 96, 68, (64, 32, 16), (1, 1, 8), 3, 4, "FMA"),
    Case(F, "ka4", "ma4", 64, 128, 64, (64, 128, 16), (2, 4, 1), 3, 4, "FMA"),
    Case(F, "ka4", "ka1", 10, 77, 36, (8, 16, 16), (1, 1, 8), 4, 1, "FMA"),
    Case(F, "me1", "ka4", 16, 40, 64, (16, 40, 16), (1, 1, 4), 2, 2, "FMA"),
    Case(H, "ka8", "ma8", 33, 32, 48, (32, 32, 32), (1, 1, 4), 2, 2, "FMA"),
    Case(D, "ka2", "ka1", 33, 31, 50, (32, 16, 16), (1, 1, 4), 2, 1, "FMA"),
)


def operand(text: str) -> Operand:
    major, copy = "k" if text[0] == "k" else "mn", "element" if text[1] == "e" else "async"
    return Operand(major, width(text), copy)


def width(text: str) -> int:
    """Elements of a vector."""
    return int(text[2:].partition("+")[0])


def side(dtype: DType, text: str) -> str:
    copy = "ELEMENT" if text[1] == "e" else "ASYNC"
    fields = config(
        "SideConfig", SIDE, k_major=text[0] == "k", copy=f"mt::Copy::{copy}", vector=width(text),
        check_rows=True, prefetched_chunks=int(text.partition("+")[2] or 0),
    )  # fmt: skip
    return f"mt::Side<{NAMES[dtype]}, {fields}>"


def functor(case: Case, text: str, pointer: str, rows: int) -> str:
    kind = NAMES[case.types[pointer == "b"]]
    at = f"{pointer} + row * {case.k} + k" if text[0] == "k" else f"{pointer} + k * {rows} + row"
    if text[1] == "l":
        steps = f"{case.k}, 1" if text[0] == "k" else f"1, {rows}"
        return f"mt::linear<{kind}, {steps}>({pointer})"
    if text[1] == "a":
        return f"mt::addressed<{kind}>([&](int row, int k) {{ return {at}; }})"
    return f"mt::evaluated<{kind}, {width(text)}>([&](int row, int k) {{ return mt::load<{width(text)}>({at}); }})"


def kernel(case: Case) -> str:
    total, (left, right) = case.total, case.types
    result = "int" if case.result is DType.I32 else NAMES[case.result]
    block_m, block_n, block_k = case.block
    warps_m, warps_n, slices = case.warps
    fields = config(
        "ProductConfig", PRODUCT, kernel=f"mt::Kernel::{case.kernel}", k=case.k, block_m=block_m, block_n=block_n,
        block_k=block_k, warps_m=warps_m, warps_n=warps_n, slices=slices, depth=case.ring, vector=case.width,
        passes=case.passes,
    )  # fmt: skip
    return f"""
#include "cuda/device/monotile.cuh"
struct Params {{ char* workspace; unsigned* sync; void* pointers[3]; }};
extern "C" __global__ void monotile_kernel(const __grid_constant__ Params p) {{
  auto a = (const {NAMES[left]}*)p.pointers[0];
  auto b = (const {NAMES[right]}*)p.pointers[1];
  auto c = ({result}*)p.pointers[2];
  auto left = {functor(case, case.left, "a", case.m)};
  auto right = {functor(case, case.right, "b", case.n)};
  using Left = {side(left, case.left)};
  using Right = {side(right, case.right)};
  using Product = mt::Product<{fields}, Left, Right, {total}>;
  static_assert(Product::BYTES <= {shared_bytes(case)});
  auto store = [&](int m, int n, const mt::Pack<{total}, {case.width}>& sums) {{
    for (int i = 0; i < {case.width}; ++i) c[m * {case.n} + n + i] = mt::cast<{result}>(sums[i]);
  }};
  for (int m = blockIdx.x * {block_m}; m < {case.m}; m += gridDim.x * {block_m})
    for (int n = 0; n < {case.n}; n += {block_n})
      mt::contract<Product>(mt::ptx::shared_memory(), m, {case.m}, n, {case.n}, left, right, store);
}}
"""


@pytest.mark.parametrize(
    ("header", "name", "defaults"),
    [
        ("panel", "SideConfig", SIDE),
        ("product", "ProductConfig", PRODUCT),
        ("attend_stream", "AttentionConfig", ATTENTION),
    ],
)
def test_defaults_are_those_of_the_headers(
    header: str, name: str, defaults: Mapping[str, object]
) -> None:
    text = (HEADERS / "cuda" / "device" / f"{header}.cuh").read_text()
    body = re.sub("//.*", "", text.partition(f"struct {name} {{")[2].partition("};")[0])
    found = dict(re.findall(r"(\w+) = ([\w:]+)", body))
    assert config(name, {}, **defaults) == config(
        name, {}, **{field: found[field].replace("Kernel", "mt::Kernel").replace("Copy", "mt::Copy") for field in defaults}
    )  # fmt: skip


def shared_bytes(case: Case) -> int:
    instruction = "mma" if case.kernel == "MMA" else "fma"
    warps_m, warps_n, slices = case.warps
    left, right = operand(case.left), operand(case.right)
    method = Matmul(
        0, 1, (0,), *case.block, instruction, left, right,
        warps_m=warps_m, warps_n=warps_n, slices=slices, depth=case.ring,
    )  # fmt: skip
    return contract_bytes(method, case.dtype.itemsize, 8 if case.dtype is D else 4)


def drawn(dtype: DType, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Random values; of integers all that there are."""
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        return random.integers(info.min, info.max + 1, shape).astype(dtype.numpy)
    return random.standard_normal(shape).astype(dtype.numpy)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract(case: Case) -> None:
    """With copies as late as they may be, and at once."""
    random = np.random.default_rng(1)
    a, b = (
        drawn(t, (lines, case.k), random)
        for t, lines in zip(case.types, (case.m, case.n), strict=True)
    )
    stored = [
        x if text[0] == "k" else np.ascontiguousarray(x.T)
        for x, text in ((a, case.left), (b, case.right))
    ]
    threads = 32 * case.warps[0] * case.warps[1] * case.warps[2]
    out = np.zeros((case.m, case.n), case.result.numpy)
    text, shape = kernel(case), Launch(2, threads, shared_bytes(case))
    wide_a, wide_b = a.astype(np.longdouble), b.astype(np.longdouble)
    right, scale = wide_a @ wide_b.T, np.abs(wide_a) @ np.abs(wide_b).T
    for late in (True, False):
        (got,) = launch(text, [*stored, out], shape, late=late, seed=3, results=(2,))
        error = np.abs(got.view(case.result.numpy).reshape(out.shape).astype(np.longdouble) - right)
        assert (error / scale).max() <= case.limit
