"""The products of a transformer cut in many ways, timed: what the constants of `Target.model.matmul` are fitted to.

    python -m bench.device.product_sweep run FILE    on a machine with a GPU: times them and writes FILE
    python -m bench.device.product_sweep fit FILE    how far off the model is, and which constants would fit better

`monotile calibrate` does the same with a part of these ways: `targets/cuda/calibrate/products.py`. Each way runs as many products in a row in
one kernel, a barrier of the grid behind each, its weights out of device memory.
"""

import argparse
from pathlib import Path

import msgspec
import numpy as np

from monotile.config import Options
from monotile.targets.cuda.calibrate.products import Way, fitted_constants, off, sweep, timed
from monotile.targets.detect import detect_target
from monotile.targets.target import Target
from monotile.targets.timing import Timing

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


class Sweep(msgspec.Struct, frozen=True):
    """What was timed, on which target."""

    target: Target
    ways: tuple[Way, ...]
    times: tuple[Timing, ...]


def run() -> Sweep:
    target = detect_target("cuda", Options())
    ways = sweep(target, SHAPES)
    return Sweep(target, ways, tuple(timed(ways, target, print, Options())))


def fit(found: Sweep) -> str:
    """How far off the model is, for which ways most, and which constants would fit better."""
    errors = list(off(found.ways, found.times, found.target))
    rows = sorted(zip(errors, found.ways, found.times, strict=True), key=lambda row: row[0])
    lines = [
        f"{e:+.0%}  {t.seconds * 1e6:6.2f} us  {w.m} x {w.n} x {w.k} / {w.parts} {w.major}: {w.rows} x {w.columns} by {w.cut}"
        for e, w, t in (*rows[:8], *rows[-8:])
    ]
    lines.append(f"on average {np.mean(errors):+.1%}, off by {np.std(errors):.1%}")
    better = fitted_constants(found.ways, found.times, found.target)
    lines += [f"{name}: {m.value:.3g}" for name, m in better.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("what", choices=("run", "fit"))
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    if chosen.what == "run":
        chosen.file.write_bytes(msgspec.json.encode(run()))
    print(fit(msgspec.json.decode(chosen.file.read_bytes(), type=Sweep)))


if __name__ == "__main__":
    main()
