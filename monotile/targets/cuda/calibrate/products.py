"""Times products cut in many ways, and fits the cost model's constants to the times."""

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.product import Product
from monotile.kernels.matmul.blocks import blocks, scratch_bytes
from monotile.kernels.matmul.cost import contract_seconds, store_seconds
from monotile.kernels.matmul.cuts import regions
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.problem import Size
from monotile.targets.binary import Binary
from monotile.targets.calibration import Measured, flat, replaced
from monotile.targets.cuda.build import build
from monotile.targets.cuda.calibrate.fit import Vector, fit_checked
from monotile.targets.cuda.calibrate.launch import Launcher
from monotile.targets.target import Target
from monotile.targets.timing import Timing

LAYERS = 48
SHOWN = 0.75  # latencies: the part of a product's start measured here that overlaps with a hand-off in a network
TOGETHER = 4  # candidates that are compiled as one source
FITTED = ("groups.fill", "groups.path", "groups.chip", "groups.finish", "warps.fill", "warps.path", "warps.chip", "warps.finish", "sums")  # fmt: skip
# m, n, k, parts along k, layout of weights, candidates to try
SHAPES = (
    (128, 2304, 768, 1, "k", 6),
    (128, 3072, 768, 1, "mn", 5),
    (128, 768, 768, 1, "k", 4),
    (128, 768, 3072, 4, "k", 6),
    (197, 2304, 768, 1, "k", 4),
    (384, 3072, 768, 1, "k", 6),
    (384, 768, 3072, 2, "k", 5),
    (1500, 2048, 512, 1, "k", 5),
)


class Way(msgspec.Struct, frozen=True):
    """A product of m x n x k in float16, in parts along k, and how it is cut. rows, columns: of a task. nbytes: on chip."""

    m: int
    n: int
    k: int
    parts: int
    major: str
    cut: Matmul
    rows: int
    columns: int
    nbytes: int


def sweep(target: Target, shapes: Sequence[tuple[int, int, int, int, str, int]] = SHAPES) -> tuple[Way, ...]:  # fmt: skip
    """The candidates to be timed."""
    return tuple(itertools.chain.from_iterable(_cuts(target, *shape) for shape in shapes))


def _cuts(target: Target, m: int, n: int, k: int, parts: int, major: str, most: int) -> list[Way]:
    """Candidates that give each worker at most one task and use a third of the workers; of each block one with few slices, one with
    many, and the fewest rows and columns that keep its number of tasks."""
    product, size = _product(major), Size(m, n, k // parts, parts)
    found: dict[object, Way] = {}
    for c in blocks(product, size, target):
        nbytes = scratch_bytes(c, product.dtype.itemsize, target)
        for rows, columns in regions(product, size, c, target):
            tasks = -(-m // rows) * -(-n // columns) * parts
            if nbytes <= target.shared_bytes and target.workers // 3 <= tasks <= target.workers:
                key = (rows, columns, c.block_m, c.block_n, c.block_k, c.instruction, c.slices > 2)
                found.setdefault(key, Way(m, n, k, parts, major, c, rows, columns, nbytes))
    by_size = sorted(found.values(), key=lambda w: (w.cut.block_k != 64, w.rows + w.columns))
    kinds = [[w for w in by_size if (w.cut.instruction == "wgmma") == g] for g in (True, False)]
    share = -(-most // sum(map(bool, kinds))) if found else 0
    taken = [kind[: 3 * share : 3] for kind in kinds]
    return list(itertools.chain.from_iterable(taken))[:most]


def _product(major: str) -> Product:
    """A float16 product. major: the layout of its right operand."""
    right = Operand("k" if major == "k" else "mn", 8, "async")
    return Product((), (0,), (1,), (0,), Operand("k", 8, "async"), right, DType.F16, 1)


def source(chosen: Sequence[Way]) -> str:
    """CUDA C++ with a kernel `way_0`, `way_1`, ... for each."""
    template = Path(__file__).with_name("products.cu").read_text()
    return template + "".join(_kernel(i, w) for i, w in enumerate(chosen))


def _kernel(number: int, w: Way) -> str:
    c, major = w.cut, str(w.major == "k").lower()
    kernel = "WGMMA" if c.instruction == "wgmma" else "MMA"
    numbers = (c.block_m, c.block_n, c.block_k, c.warps_m, c.warps_n, c.slices, c.depth, w.rows, w.columns)  # fmt: skip
    arguments = f"{w.m}, {w.n}, {w.k}, {w.parts}, Kernel::{kernel}, {major}, {', '.join(map(str, numbers))}"  # fmt: skip
    head = f'extern "C" __global__ void __launch_bounds__(256, 1) way_{number}'
    return f"\n{head}(Given given, int layers) {{ chain<{arguments}>(given, layers); }}\n"


class _Given(ctypes.Structure):
    """`Given` of products.cu."""

    _fields_ = (("sync", ctypes.c_void_p), ("a", ctypes.c_void_p), ("b", ctypes.c_void_p), ("c", ctypes.c_void_p), ("copies", ctypes.c_int))  # fmt: skip


def timed(
    chosen: Sequence[Way], target: Target, say: Callable[[str], None], options: Options
) -> list[Timing]:
    """Seconds of one product each, its barrier included, on the current GPU."""
    parts = [chosen[i : i + TOGETHER] for i in range(0, len(chosen), TOGETHER)]

    def compiled(part: Sequence[Way]) -> Binary:
        return build(source(part), target, options)

    say(f"compiling {len(chosen)} products")
    launcher, out = Launcher(), list[Timing]()
    with ThreadPoolExecutor() as pool:
        for part, binary in zip(parts, pool.map(compiled, parts), strict=True):
            for number, way in enumerate(part):
                say(f"product {len(out) + 1} of {len(chosen)}")
                out.append(_time(way, binary, f"way_{number}", launcher, target))
    return out


def _time(way: Way, binary: Binary, entry: str, launcher: Launcher, target: Target) -> Timing:
    each = 2 * way.n * way.k
    copies = -(-2 * target.l2_bytes // each)
    sync, a = launcher.bytes(256), launcher.bytes(2 * way.m * way.k)
    b, c = launcher.bytes(copies * each), launcher.bytes(4 * way.m * way.n * way.parts)
    given = _Given(sync.data_ptr(), a.data_ptr(), b.data_ptr(), c.data_ptr(), copies)
    function = launcher.function(binary, entry, way.nbytes)
    shape = (target.workers, target.threads, way.nbytes)
    found = launcher.time(function, shape, [given, ctypes.c_int(LAYERS)])
    return Timing(found.seconds / LAYERS, found.steady)


def predicted(way: Way, target: Target) -> float:
    """Seconds of one product, its barrier included, by the cost model."""
    stored = way.m * way.n * way.parts
    task = Size(way.rows, way.columns, way.k // way.parts)
    found = contract_seconds(way.cut, _product(way.major), task, target)
    found += store_seconds(stored, 4 if way.parts > 1 else 2, 2, target)
    return found + target.barrier_seconds + SHOWN * target.latency_seconds


def fitted_constants(
    chosen: Sequence[Way], times: Sequence[Timing], target: Target
) -> dict[str, Measured]:
    """The constants of `FITTED` that fit steady times, by their dotted names; none where they are no better than the present ones."""
    there = flat(target.model)
    names = [n for name in FITTED if (n := f"matmul.{name}") in there]
    pairs = [(w, t.seconds) for w, t in zip(chosen, times, strict=True) if t.steady]
    if len(pairs) < 2 * len(names):
        return {}

    def predict(values: Vector) -> Vector:
        model = replaced(target.model, dict(zip(names, map(float, values), strict=True)))
        changed = msgspec.structs.replace(target, model=model)
        return np.array([predicted(w, changed) for w, _ in pairs])

    start = np.array([there[n] for n in names])
    found = fit_checked(predict, start, np.array([t for _, t in pairs]))
    if found is None:
        return {}
    return {f"model.{n}": Measured(float(v)) for n, v in zip(names, found, strict=True)}


def off(chosen: Sequence[Way], times: Sequence[Timing], target: Target) -> Iterator[float]:
    """The model's error relative to the measured time, for each candidate."""
    for way, time in zip(chosen, times, strict=True):
        yield predicted(way, target) / time.seconds - 1
