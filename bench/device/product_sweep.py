"""The products of a transformer cut in many ways, timed: what the constants of `kernels/matmul/cost.py` are fitted to.

    python -m bench.device.product_sweep DIR      writes DIR/sweep_0.cu to DIR/sweep_15.cu; then, where the GPU is:
    ls DIR/*.cu | xargs -P 16 -I{} nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -I monotile/device {} -o {}.out
    for f in DIR/*.out; do $f; done > DIR/sweep.txt
    python -m bench.device.product_sweep --fit DIR/sweep.txt

Each way runs as 96 products in a row in one kernel, a barrier of the grid behind each, its weights out of device memory.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from monotile.ir.dtype import DType
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.product import Product
from monotile.kernels.matmul.blocks import Ways, ways
from monotile.kernels.matmul.cost import contract_seconds, store_seconds
from monotile.kernels.matmul.method import Matmul
from monotile.schedule.tiles import regions
from monotile.targets.cuda.target import cuda_target

H100 = cuda_target("sm_90a")
BARRIER = 1.5  # microseconds: and what a network's stage hides of a product's beginning behind its hand-off
FILES = 16  # that are compiled side by side

Cut = tuple[Matmul, int, int]  # a way, and a task's rows and columns

# m, n, k, parts along k, how weights lie, ways to try
SHAPES = (
    (128, 2304, 768, 1, "k", 16),
    (128, 2304, 768, 1, "mn", 14),
    (128, 3072, 768, 1, "k", 12),
    (128, 3072, 768, 1, "mn", 10),
    (128, 768, 768, 1, "k", 6),
    (128, 768, 768, 2, "k", 8),
    (128, 768, 3072, 1, "k", 4),
    (128, 768, 3072, 4, "k", 10),
    (128, 768, 3072, 8, "k", 8),
    (128, 768, 3072, 4, "mn", 8),
    (197, 3072, 768, 1, "k", 8),
    (197, 2304, 768, 1, "k", 6),
    (197, 768, 3072, 4, "k", 6),
    (384, 2304, 768, 1, "k", 8),
    (384, 3072, 768, 1, "k", 8),
    (384, 768, 768, 1, "k", 6),
    (384, 768, 3072, 2, "k", 6),
    (384, 768, 3072, 4, "k", 6),
    (1500, 512, 2048, 1, "k", 8),
    (1500, 2048, 512, 1, "k", 8),
    (1576, 768, 768, 1, "k", 8),
    (1576, 768, 3072, 1, "k", 8),
)


def cuts(m: int, n: int, k: int, parts: int, major: str, most: int) -> list[Cut]:
    """Ways that give each worker at most one task and use a third of them; of each block one with few slices, one with many, and the
    fewest rows and columns that keep its number of tasks."""
    right = Operand("k" if major == "k" else "mn", 8, "async")
    product = Product((), (0,), (1,), (0,), Operand("k", 8, "async"), right, DType.F16, True)
    found: dict[object, Cut] = {}
    for c, nbytes in ways(product, m, n, k // parts, H100, Ways()):
        for tile_m, tile_n in regions(product, m, n, parts, c, H100):
            tasks = -(-m // tile_m) * -(-n // tile_n) * parts
            if nbytes <= H100.shared_bytes and H100.workers // 3 <= tasks <= H100.workers:
                key = (tile_m, tile_n, c.block_m, c.block_n, c.block_k, c.instruction, c.slices > 2)
                found.setdefault(key, (c, tile_m, tile_n))
    moved = sorted(found.values(), key=lambda cut: (cut[0].block_k != 64, cut[1] + cut[2]))
    return moved[: 3 * most : 3]


def calls() -> Iterator[str]:
    for m, n, k, parts, major, most in SHAPES:
        for c, tile_m, tile_n in cuts(m, n, k, parts, major, most):
            kernel = "WGMMA" if c.instruction == "wgmma" else "MMA"
            numbers = (c.block_m, c.block_n, c.block_k, c.warps_m, c.warps_n, c.slices, c.depth)
            yield (
                f"sweep<{m}, {n}, {k}, {parts}, mt::Kernel::{kernel}, {str(major == 'k').lower()}, "
                f"{', '.join(map(str, numbers))}, {tile_m}, {tile_n}>(given);"
            )


def contract_of(words: list[str]) -> tuple[Matmul, int, int, int]:
    """The way of a line that the sweep printed, its rows, columns and values of k."""
    k, parts = int(words[2]), int(words[3])
    right = Operand("k" if words[5] == "k" else "mn", 8, "async")
    block_m, block_n, block_k, warps_m, warps_n, slices, depth, tile_m, tile_n = map(
        int, words[6:15]
    )
    c = Matmul(
        m=0, n=0, k=(0,), block_m=block_m, block_n=block_n, block_k=block_k,
        instruction="wgmma" if words[4] == "wgmma" else "mma.m16n8k16", left=Operand("k", 8, "async"), right=right,
        warps_m=warps_m, warps_n=warps_n, slices=slices, depth=depth,
    )  # fmt: skip
    return c, tile_m, tile_n, k // parts


def off(lines: list[str]) -> Iterator[tuple[float, str]]:
    """By how much of what was measured the model is off for each line, the barrier left out."""
    for line in lines:
        words = line.split()
        c, m, n, k = contract_of(words)
        stored = int(words[0]) * int(words[1]) * int(words[3])
        found = contract_seconds(c, m, n, k, 2, H100)
        found += store_seconds(stored, 4 if int(words[3]) > 1 else 2, 2, H100)
        yield found * 1e6 / (float(words[15]) - BARRIER) - 1, line


def fit(lines: list[str]) -> str:
    """How far off the model is, and for which ways most."""
    found = sorted(off([line for line in lines if line.strip()]))
    errors = np.array([e for e, _ in found])
    shown = [f"{e:+.0%}  {line}" for e, line in (*found[:8], *found[-8:])]
    return "\n".join([*shown, f"on average {errors.mean():+.1%}, off by {errors.std():.1%}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--fit",
        action="store_true",
        help="how far off the model is; path is what the sweep printed",
    )
    chosen = parser.parse_args()
    if chosen.fit:
        print(fit(chosen.path.read_text().splitlines()))
        return
    template = Path(__file__).with_name("product_sweep.cu").read_text()
    every = list(calls())
    for i in range(FILES):
        text = template.replace("// CALLS", "\n  ".join(every[i::FILES]))
        (chosen.path / f"sweep_{i}.cu").write_text(text)


if __name__ == "__main__":
    main()
