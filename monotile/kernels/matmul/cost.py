"""How long a product's task takes, copies, on-chip memory, tensor cores, and what comes before and after.

A handful of constants over the Target's figures, fitted to measurements (`Target.model`). A model to rank by (Roller).
"""

import functools

from monotile.ir.expr import axes_of
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.cost import arithmetic, chip_seconds
from monotile.kernels.common.panels import line_use
from monotile.kernels.common.product import Product
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.problem import Memory, Problem, Size
from monotile.targets.model import Matmul as Model
from monotile.targets.model import TensorCores, fitted
from monotile.targets.target import Target


@functools.lru_cache(maxsize=4096)
def finishing(step: tuple[Compute | Scatter, ...], plain: float, costly: float) -> float:
    """Operations that follow an element of a product: plain ones hide behind stores, and nothing hides chains of others. What is the same
    for a row, or a column, is computed once. plain, costly: what one counts for."""
    total = 0.0
    for s in step[1:]:
        sides = {a for a in s.axes if a.extent > 1}
        each = (c for c, node in arithmetic(s) if len(sides & axes_of(node)) >= min(2, len(sides)))
        total += plain + sum(costly if c else plain for c in each)
    return total


def contract_seconds(c: Matmul, p: Product, task: Size, target: Target) -> float:
    """One task's part of the product `p`, its rows and columns rounded up to whole blocks."""
    return sum(_contract_parts(c, p, task, target))


def rounds_seconds(c: Matmul, problem: Problem, task: Size, rounds: int, target: Target) -> float:
    """`rounds` such tasks of a worker with their epilogues, one after the other, or in teams."""
    fill, busy, finish = _contract_parts(c, problem.product, task, target)
    finish += task.m * task.n * problem.operations / (target.flops["fma"] / 2 / target.workers)
    if target.has.register_tiles:
        return rounds * (fill + busy + finish)
    if rounds == 1:
        return fill + busy + finish
    model = fitted(target.model.matmul)
    again = (rounds - 1) * model.again * target.latency_seconds
    if c.following:  # what comes before the next products hides behind these sums
        each = fill + rounds * (busy + finish) + max(0.0, again + (rounds - 1) * (fill - finish))
        goes_on = -(-task.k // c.block_k) % c.depth == 0
        rests = (rounds - 1) * (1 if goes_on else model.drained)
        shown = fill + finish + rests * target.latency_seconds
    else:
        each = again + _in_rounds(c, fill, busy, finish, rounds, model)
        shown = again + rounds * (fill + finish) / c.teams
    itemsize = problem.product.dtype.itemsize
    least = rounds * (task.m + task.n) * task.k * itemsize / (model.apart * target.worker_bandwidth)
    return max(least, each, _memory_seconds(c, problem.memory, itemsize, target) + shown)


def _memory_seconds(c: Matmul, memory: Memory, itemsize: int, target: Target) -> float:
    """What comes from memory, as fast as the copies under way let it: a worker's share of the bandwidth takes so much at a time."""
    chunks = c.slices * c.teams * (c.depth - (2 if c.instruction == "wgmma" and c.depth > 3 else 1))
    latency = fitted(target.model.matmul).memory_latency * target.latency_seconds
    wanted = latency * target.dram_bandwidth / target.workers
    blocks = zip((memory.left, memory.right), (c.block_m, c.block_n), strict=True)
    return sum(
        nbytes / target.dram_bandwidth * max(1.0, wanted / (chunks * block * c.block_k * itemsize))
        for nbytes, block in blocks
    )


def _in_rounds(
    c: Matmul, fill: float, busy: float, finish: float, rounds: int, model: Model
) -> float:
    if c.teams == 1:
        return rounds * (fill + busy + finish)
    together, alone = divmod(rounds, c.teams)
    # One team's finish hides behind the products of another, but for the last.
    each = fill + c.teams * busy + (c.teams - 1) * finish
    last = fill + model.alone * busy + c.teams * finish if alone else finish
    return together * each + last


def _contract_parts(
    c: Matmul, p: Product, task: Size, target: Target
) -> tuple[float, float, float]:
    """What a task takes before its products, for them, and for its sums."""
    m, n, k, itemsize = task.m, task.n, task.k, p.dtype.itemsize
    padded = -(-k // c.block_k) * c.block_k  # zeros are multiplied, and evaluated, as well
    if c.runs > 1:  # and copied
        k = padded
    blocks = -(-m // c.block_m) * -(-n // c.block_n)
    tensor_cores = c.instruction in ("mma.m16n8k16", "wgmma")
    rate = target.flops["mma16" if tensor_cores else "fma"] / target.workers
    deep = padded if tensor_cores else k
    work = 2 * c.block_m * c.block_n * deep / (rate * _efficiency(c, target))
    if target.has.register_tiles:  # a task's operands stay in the caches between blocks
        moved = (m + n) * k * itemsize / target.worker_bandwidth
        packed = (c.left.copy == "element") * m + (c.right.copy == "element") * n
        packing = 2 * packed * k * itemsize / target.worker_bandwidth
        return target.latency_seconds, packing + max(moved, blocks * work), 0.0
    model = fitted(target.model.matmul)
    along = min(c.block_k, p.near or c.block_k) * c.runs
    rows, columns = min(c.block_m, m), min(c.block_n, n)
    left = rows * c.runs / line_use(c.left, rows, along, itemsize, model)
    right = columns / line_use(c.right, columns, c.block_k, itemsize, model)
    moved = (left + right) * k * itemsize / target.worker_bandwidth
    values = sum(
        block / side.vector
        for side, block in ((c.left, c.block_m), (c.right, c.block_n))
        if side.copy == "element"
    )
    scalar = target.flops["fma"] / 2 / target.workers
    evaluation = model.evaluate * values * deep / scalar
    narrow = sum(
        rows / side.vector
        for side, rows in ((c.left, c.block_m), (c.right, c.block_n))
        if side.copy == "async" and side.vector * itemsize < target.vector_bytes
    )
    copying = model.copy * narrow * k / scalar
    hidden = _cores(c, model).hides
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
    model, groups = fitted(target.model.matmul), c.instruction == "wgmma"
    cores = _cores(c, model)
    steps = -(-k // (c.block_k * c.slices)) if c.warps_m * c.warps_n > 1 else 0
    fill = target.latency_seconds * (cores.fill + cores.step * steps)
    down = c.block_m // 64 if groups else c.warps_m
    read = c.warps_n * c.block_m + down * c.block_n
    chip = 2 * k * (sum(tile) * c.runs + read) / target.worker_bandwidth
    moved, chip = moved / cores.path, chip / cores.chip
    if groups:
        parts = (moved, chip, work)
        busy = (1 - model.shows) * max(parts) + model.shows * sum(parts)
    else:
        busy = max(moved, chip) + work
    finish = cores.finish * chip_seconds(tile[0] * tile[1], target)
    return fill, busy, finish + model.sums * _sums_seconds(c, target)


def _cores(c: Matmul, model: Model) -> TensorCores:
    """Of the product's instruction; those of scalar products are not asked for."""
    return fitted(model.groups) if c.instruction == "wgmma" else model.warps


def _scalar_block(
    c: Matmul, k: int, moved: float, work: float, target: Target
) -> tuple[float, float, float]:
    steps = -(-k // (c.block_k * c.slices))
    each = fitted(target.model.matmul).scalar_step
    waits = steps * each if c.warps_m * c.warps_n > 1 else 0.0
    rounds = -(-steps // (c.depth - 1))  # of copies that wait for room in the ring
    fill = target.latency_seconds * (1 + waits + 0.5 * (rounds - 1))
    return fill, max(moved, work), 2 * _sums_seconds(c, target)


def _sums_seconds(c: Matmul, target: Target) -> float:
    """One pass over the slices' sums, on chip."""
    return chip_seconds(c.slices * c.block_m * c.block_n, target)


def store_seconds(results: int, stored: int, size: int, target: Target) -> float:
    """All of a product's results on their way out, of all tasks together, as far as they are wider than the operands.

    results: how many. stored, size: bytes of one, and of an operand's element.
    """
    if target.has.register_tiles or stored <= size:
        return 0.0
    cost = fitted(target.model.matmul).write
    return cost * results * stored / (target.worker_bandwidth * target.workers)


def _efficiency(c: Matmul, target: Target) -> float:
    """The part of the arithmetic rate that a warp's tile, or a thread's, can reach."""
    match c.instruction:
        case "mma.m16n8k16" if c.runs > 1:  # of each run's own fragments
            return fitted(target.model.matmul).run_rate * min(1.0, c.block_n / c.runs / 8)
        case "mma.m16n8k16" | "wgmma":
            return 1.0
        case "fma":  # a thread's tile is about square: operands read against products made of them
            side = (c.block_m // c.warps_m * c.block_n // c.warps_n / 32) ** 0.5
            model = fitted(target.model.matmul)
            return model.scalar_rate * min(1.0, side / model.scalar_side)
        case "outer":
            return fitted(target.model.register_tiles).outer
        case "dot":
            return fitted(target.model.register_tiles).dot
