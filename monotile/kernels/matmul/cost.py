"""How long a product's task takes, copies, on-chip memory, tensor cores, and what comes before and after.

A handful of constants over the Target's figures, fitted to measurements (docs/measurements.md). A model to rank by (Roller).
"""

import functools
from dataclasses import dataclass

from monotile.ir.expr import axes_of
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.cost import SHARED_SPEEDUP, arithmetic
from monotile.kernels.common.panels import line_use
from monotile.kernels.matmul.method import Matmul
from monotile.targets.target import Target

EVALUATE = 100.0  # operations that a vector of an evaluated operand takes: indices, and a wait for each few (ResNet's first product: 150)
COPY = 100.0  # the same of an asynchronous copy of less than 16 bytes: an image's windows of four channels (ResNet's first product)
GROUP_HIDES = 0.4  # of that, what warpgroups hide
# A product on tensor cores, fitted to 182 ways to cut transformers' ones and to 35 stages of networks (H100; 6 % off by wgmma, 7 % by mma.sync;
# bench/device/product_sweep.py). In latencies, in parts of the path from L2 into one worker, in on-chip passes.
GROUP_FILL, WARP_FILL = 0.9, 0.5  # what comes before the first products; the latter by mma.sync
GROUP_STEP, WARP_STEP = 0.025, 0.045  # the warps of a slice wait for each other, for every chunk
GROUP_PATH, WARP_PATH = 1.3, 1.25  # copies that are asked for far ahead
GROUP_CHIP, WARP_CHIP = 2.6, 3.6  # on-chip memory, written by copies, read by tensor cores
SHOWS = 0.05  # of what goes on meanwhile
SUM_COST = 4.6  # the slices' sums
GROUP_FINISH, WARP_FINISH = 4.6, 9.0  # the results
BEHIND = (0.4, 22.0)  # what an operation that follows counts for, plain or costly
AGAIN = 0.6  # of the latency: what a worker's further tasks wait for, as no hand-off hides it
MEMORY_LATENCY = 4.0  # latencies that a copy from memory takes where all workers ask (GPT-2's vocabulary: 48 KB a worker under way are too few, 64 enough)
DRAINED = 3.0  # latencies for which memory rests between two tasks, where the ring does not go on with the next one's chunks; else one
APART = 0.6  # the path from L2 where workers ask for the same at different times, as they do after their first tasks
WRITE_COST = 2.2  # what a byte of sums that are stored unrounded costs in bytes of operands, whichever worker stores it
RUN_RATE = 0.2  # of tensor cores' rate: columns in runs load fragments for each product
ALONE = 1.15  # of a team's products, where the other has none: two hide each other's waits
SCALAR_RING_BARRIER = 0.07  # of the latency: as WARP_STEP, without tensor cores


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a product's operands that no cache keeps."""

    left: float
    right: float


NOTHING = Memory(0, 0)


@functools.lru_cache(maxsize=4096)
def finishing(step: tuple[Compute | Scatter, ...]) -> float:
    """Operations that follow an element of a product: plain ones hide behind stores, and nothing hides chains of others. What is the same
    for a row, or a column, is computed once."""
    plain, costly = BEHIND
    total = 0.0
    for s in step[1:]:
        sides = {a for a in s.axes if a.extent > 1}
        each = (c for c, node in arithmetic(s) if len(sides & axes_of(node)) >= min(2, len(sides)))
        total += plain + sum(costly if c else plain for c in each)
    return total


def contract_seconds(
    c: Matmul, m: int, n: int, k: int, size: int, target: Target, near: int = 0
) -> float:
    """One task's m x n x k product, m and n rounded up to whole blocks.

    size: bytes of an operand's element. near: how many values of k lie side by side in the left operand; 0 for all.
    """
    return sum(_contract_parts(c, m, n, k, size, target, near))


def rounds_seconds(
    c: Matmul,
    m: int,
    n: int,
    k: int,
    size: int,
    target: Target,
    near: int,
    after: float,
    rounds: int,
    memory: Memory = NOTHING,
) -> float:
    """`rounds` such tasks of a worker, one after the other, or in teams. after: operations that follow an element. memory: what comes
    from there."""
    fill, busy, finish = _contract_parts(c, m, n, k, size, target, near)
    finish += m * n * after / (target.flops["fma"] / 2 / target.workers)
    if target.kind == "cpu":
        return rounds * (fill + busy + finish)
    if rounds == 1:
        return fill + busy + finish
    again = (rounds - 1) * AGAIN * target.latency_seconds
    if c.following:  # what comes before the next products hides behind these sums
        each = fill + rounds * (busy + finish) + max(0.0, again + (rounds - 1) * (fill - finish))
        goes_on = -(-k // c.block_k) % c.depth == 0
        shown = fill + finish + (rounds - 1) * (1 if goes_on else DRAINED) * target.latency_seconds
    else:
        each = again + _in_rounds(c, fill, busy, finish, rounds)
        shown = again + rounds * (fill + finish) / c.teams
    least = rounds * (m + n) * k * size / (APART * target.worker_bandwidth)
    return max(least, each, _memory_seconds(c, memory, size, target) + shown)


def _memory_seconds(c: Matmul, memory: Memory, size: int, target: Target) -> float:
    """What comes from memory, as fast as the copies under way let it: a worker's share of the bandwidth takes so much at a time."""
    chunks = c.slices * c.teams * (c.depth - (2 if c.instruction == "wgmma" and c.depth > 3 else 1))
    wanted = MEMORY_LATENCY * target.latency_seconds * target.dram_bandwidth / target.workers
    blocks = zip((memory.left, memory.right), (c.block_m, c.block_n), strict=True)
    return sum(
        nbytes / target.dram_bandwidth * max(1.0, wanted / (chunks * block * c.block_k * size))
        for nbytes, block in blocks
    )


def _in_rounds(c: Matmul, fill: float, busy: float, finish: float, rounds: int) -> float:
    if c.teams == 1:
        return rounds * (fill + busy + finish)
    together, alone = divmod(rounds, c.teams)
    # One team's finish hides behind the products of another, but for the last.
    each = fill + c.teams * busy + (c.teams - 1) * finish
    last = fill + ALONE * busy + c.teams * finish if alone else finish
    return together * each + last


def _contract_parts(
    c: Matmul, m: int, n: int, k: int, size: int, target: Target, near: int
) -> tuple[float, float, float]:
    """What a task takes before its products, for them, and for its sums."""
    padded = -(-k // c.block_k) * c.block_k  # zeros are multiplied, and evaluated, as well
    if c.runs > 1:  # and copied
        k = padded
    blocks = -(-m // c.block_m) * -(-n // c.block_n)
    tensor_cores = c.instruction in ("mma.m16n8k16", "wgmma")
    rate = target.flops["mma16" if tensor_cores else "fma"] / target.workers
    deep = padded if tensor_cores else k
    work = 2 * c.block_m * c.block_n * deep / (rate * _efficiency(c))
    if target.kind == "cpu":  # register tiles: a task's operands stay in the caches between blocks
        moved = (m + n) * k * size / target.worker_bandwidth
        packed = (c.left.copy == "element") * m + (c.right.copy == "element") * n
        packing = 2 * packed * k * size / target.worker_bandwidth
        return target.latency_seconds, packing + max(moved, blocks * work), 0.0
    along = min(c.block_k, near or c.block_k) * c.runs
    rows, columns = min(c.block_m, m), min(c.block_n, n)
    left = rows * c.runs / line_use(c.left, rows, along, size)
    right = columns / line_use(c.right, columns, c.block_k, size)
    moved = (left + right) * k * size / target.worker_bandwidth
    values = sum(
        size / side.vector
        for side, size in ((c.left, c.block_m), (c.right, c.block_n))
        if side.copy == "element"
    )
    scalar = target.flops["fma"] / 2 / target.workers
    evaluation = EVALUATE * values * deep / scalar
    narrow = sum(
        rows / side.vector
        for side, rows in ((c.left, c.block_m), (c.right, c.block_n))
        if side.copy == "async" and side.vector * size < target.vector_bytes
    )
    copying = COPY * narrow * k / scalar
    hidden = GROUP_HIDES if c.instruction == "wgmma" else 0.0
    moved = max(moved, (1 - hidden) * copying) if hidden else moved + copying
    if tensor_cores:
        fill, busy, sums = _tensor_core_block(c, k, (rows, columns), moved, work, target)
    else:
        fill, busy, sums = _scalar_block(c, k, moved, work, target)
    return blocks * fill, blocks * (evaluation + busy), blocks * sums


def _tensor_core_block(
    c: Matmul, k: int, tile: tuple[int, int], moved: float, work: float, target: Target
) -> tuple[float, float, float]:
    """What is copied is written to on-chip memory and read from there, as often as instructions ask for it. Warps that load fragments
    for mma.sync do not ask for operands meanwhile; what wgmma does is hidden. tile: rows and columns."""
    groups = c.instruction == "wgmma"
    steps = -(-k // (c.block_k * c.slices)) if c.warps_m * c.warps_n > 1 else 0
    wait = (GROUP_STEP if groups else WARP_STEP) * steps
    fill = target.latency_seconds * ((GROUP_FILL if groups else WARP_FILL) + wait)
    down = c.block_m // 64 if groups else c.warps_m
    read = c.warps_n * c.block_m + down * c.block_n
    chip = 2 * k * (sum(tile) * c.runs + read) / target.worker_bandwidth
    if groups:
        parts = (moved / GROUP_PATH, chip / GROUP_CHIP, work)
        busy = (1 - SHOWS) * max(parts) + SHOWS * sum(parts)
    else:
        busy = max(moved / WARP_PATH, chip / WARP_CHIP) + work
    finish = (GROUP_FINISH if groups else WARP_FINISH) * _chip_seconds(tile[0] * tile[1], target)
    return fill, busy, finish + SUM_COST * _sums_seconds(c, target)


def _scalar_block(
    c: Matmul, k: int, moved: float, work: float, target: Target
) -> tuple[float, float, float]:
    steps = -(-k // (c.block_k * c.slices))
    waits = steps * SCALAR_RING_BARRIER if c.warps_m * c.warps_n > 1 else 0.0
    rounds = -(-steps // (c.depth - 1))  # of copies that wait for room in the ring
    fill = target.latency_seconds * (1 + waits + 0.5 * (rounds - 1))
    return fill, max(moved, work), 2 * _sums_seconds(c, target)


def _sums_seconds(c: Matmul, target: Target) -> float:
    """One pass over the slices' sums, on chip."""
    return _chip_seconds(c.slices * c.block_m * c.block_n, target)


def _chip_seconds(values: int, target: Target) -> float:
    """One pass over so many values of 4 bytes, on chip."""
    return values * 4 / (SHARED_SPEEDUP * target.worker_bandwidth)


def store_seconds(results: int, stored: int, size: int, target: Target) -> float:
    """All of a product's results on their way out, of all tasks together, as far as they are wider than the operands.

    results: how many. stored, size: bytes of one, and of an operand's element.
    """
    if target.kind == "cpu" or stored <= size:
        return 0.0
    return WRITE_COST * results * stored / (target.worker_bandwidth * target.workers)


def _efficiency(c: Matmul) -> float:
    """The part of the arithmetic rate that a warp's tile can reach."""
    match c.instruction:
        case "mma.m16n8k16" if c.runs > 1:  # of each run's own fragments
            return RUN_RATE * min(1.0, c.block_n / c.runs / 8)
        case "mma.m16n8k16" | "wgmma":
            return 1.0
        case "fma":  # a thread's tile is about square: operands read against products made of them
            side = (c.block_m // c.warps_m * c.block_n // c.warps_n / 32) ** 0.5
            return 0.75 * min(1.0, side / 6)
        case "outer":
            return 0.9
        case "dot":
            return 0.6
