"""The products of a transformer cut in many ways, timed: what the constants of `schedule/cost.py` are fitted to.

    python -m bench.device.product_sweep DIR      writes DIR/sweep.cu; then, where the GPU is:
    nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -I monotile/device DIR/sweep.cu -o DIR/sweep && DIR/sweep > DIR/sweep.txt
    python -m bench.device.product_sweep --fit DIR/sweep.txt

Each way runs as 96 products in a row in one kernel, a barrier of the grid behind each, its weights out of device memory.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from monotile.ir.dtype import DType
from monotile.schedule.cost import line_use
from monotile.schedule.methods import Ways, ways
from monotile.schedule.plan import Contract, Operand
from monotile.schedule.products import Product
from monotile.target.target import cuda_target

H100 = cuda_target("sm_90a")
BARRIER = 1.0  # microseconds
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
)


def cuts(m: int, n: int, k: int, parts: int, major: str, most: int) -> list[Contract]:
    """Ways that give each worker at most one task and use a third of them; of each block one with few slices, one with many."""
    right = Operand("k" if major == "k" else "mn", 8, "async")
    product = Product((), (0,), (1,), (0,), Operand("k", 8, "async"), right, DType.F16, True)
    found: dict[object, Contract] = {}
    for c, nbytes in ways(product, m, n, k // parts, H100, Ways()):
        tasks = -(-m // c.block_m) * -(-n // c.block_n) * parts
        if nbytes <= H100.shared_bytes and H100.workers // 3 <= tasks <= H100.workers:
            found.setdefault((c.block_m, c.block_n, c.block_k, c.instruction, c.slices > 2), c)
    moved = sorted(found.values(), key=lambda c: (c.block_k != 64, c.block_m + c.block_n))
    return moved[:most]


def calls() -> Iterator[str]:
    for m, n, k, parts, major, most in SHAPES:
        for c in cuts(m, n, k, parts, major, most):
            kernel = "WGMMA" if c.instruction == "wgmma" else "MMA"
            numbers = (c.block_m, c.block_n, c.block_k, c.warps_m, c.warps_n, c.slices, c.depth)
            yield (
                f"sweep<{m}, {n}, {k}, {parts}, mt::Kernel::{kernel}, {str(major == 'k').lower()}, "
                f"{', '.join(map(str, numbers))}>(given);"
            )


def terms(words: list[str]) -> tuple[list[float], float]:
    """What the cost model adds up, in microseconds, and the time measured without the barrier."""
    m, n, k, parts = map(int, words[:4])
    instruction, major = words[4:6]
    block_m, block_n, block_k, warps_m, warps_n, slices, _ = map(int, words[6:13])
    bandwidth, k = H100.worker_bandwidth / 1e6, k // parts
    use = line_use(Operand("k" if major == "k" else "mn", 8, "async"), block_n, block_k, 2)
    moved = (min(block_m, m) + min(block_n, n) / use) * k * 2 / bandwidth
    work = 2 * block_m * block_n * k / (H100.flops["mma16"] / H100.workers) * 1e6
    steps = -(-k // (block_k * slices)) if warps_m * warps_n > 1 else 0
    sums = slices * block_m * block_n * 4 / (4 * bandwidth)
    stored = 4 * m * n * parts / (bandwidth * H100.workers) if parts > 1 else 0.0
    return [1.0, moved, work * (instruction == "mma"), steps, sums, stored], float(
        words[13]
    ) - BARRIER


def fit(lines: list[str]) -> str:
    """Least squares of the relative error."""
    rows, times = zip(*(terms(line.split()) for line in lines if line.strip()), strict=True)
    a, t = np.array(rows), np.array(times)
    found = np.linalg.lstsq(a / t[:, None], np.ones(len(t)), rcond=None)[0]
    off = np.sqrt(np.mean((a @ found / t - 1) ** 2))
    names = ("fill, us", "CROWD", "mma.sync", "a step, us", "SUM_COST", "WRITE_COST")
    text = [f"{name}: {value:.2f}" for name, value in zip(names, found, strict=True)]
    return "\n".join([*text, f"off by {off:.1%}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("path", type=Path)
    parser.add_argument("--fit", action="store_true", help="path is what the sweep printed")
    chosen = parser.parse_args()
    if chosen.fit:
        print(fit(chosen.path.read_text().splitlines()))
        return
    template = Path(__file__).with_name("product_sweep.cu").read_text()
    text = template.replace("// CALLS", "\n  ".join(calls()))
    (chosen.path / "sweep.cu").write_text(text)


if __name__ == "__main__":
    main()
