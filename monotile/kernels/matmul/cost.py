"""Cost model of a product's task: copies, on-chip memory, tensor cores, prologue and epilogue.

A handful of constants over the Target's figures, fitted to measurements (`Target.model`). It is used to rank candidates (Roller).
"""

import functools
from typing import NamedTuple

import msgspec

from monotile.analysis.words import by_words
from monotile.ir.dtype import DType
from monotile.ir.expr import axes_of
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.cost import arithmetic, chip_seconds
from monotile.kernels.common.panels import line_use
from monotile.kernels.common.product import Product
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.problem import Memory, Problem, Size
from monotile.kernels.matmul.words import packed_lines
from monotile.targets.model import Matmul as Model
from monotile.targets.model import TensorCores, fitted
from monotile.targets.target import Target

READ = 1 / 4  # of a vector product, for loading a value into a vector
TILE = (8, 2)  # rows, vectors: the tile with which `RegisterTiles.outer` was measured


@functools.lru_cache(maxsize=4096)
def finishing(step: tuple[Compute | Scatter, ...], plain: float, costly: float) -> float:
    """Operations of the epilogue per element of a product: plain ones overlap with stores, chains of others do not. Operations that are the
    same for a row, or a column, are computed once. plain, costly: the cost of one of each."""
    total = 0.0
    for s in step[1:]:
        sides = {a for a in s.axes if a.extent > 1}
        each = (c for c, node in arithmetic(s) if len(sides & axes_of(node)) >= min(2, len(sides)))
        total += plain + sum(costly if c else plain for c in each)
    return total


class Floor(NamedTuple):
    """A lower bound of a block's cost, without rows and columns to copy or to finish. In seconds: fill: before the first products. each:
    for a task's products. finish: after the last. teams: that alternate between tasks."""

    fill: float = 0.0
    each: float = 0.0
    finish: float = 0.0
    teams: int = 1

    def least(self, rounds: int) -> float:
        """A lower bound of the seconds of `rounds` tasks with such blocks on one worker."""
        return self.fill + rounds // self.teams * self.teams * self.each + self.finish


class Block(msgspec.Struct, frozen=True):
    """The cost of a block of a product, as far as it does not depend on how many of its rows and columns a task has. In seconds, except
    `read`.

    k: values that are summed. fill: before the first products. work: of the multiply-adds. evaluated: of operands that are evaluated.
    copied: of asynchronous copies of less than full width. read: values of operands read on chip for one of k. sums: one pass over the
    slices' sums. cores: the figures of the instruction's tensor cores, or of the work that hides copies. tensor: whether it is for
    tensor cores.
    """

    method: Matmul
    product: Product
    target: Target
    k: int
    fill: float
    work: float
    evaluated: float = 0.0
    copied: float = 0.0
    read: int = 0
    sums: float = 0.0
    cores: TensorCores | None = None
    tensor: bool = False

    @property
    def floor(self) -> Floor:
        if self.target.has.register_tiles:  # a task has many blocks
            return Floor()
        busy, finish = _products(self, 0.0, (0, 0))
        return Floor(self.fill, self.evaluated + busy, finish, self.method.tasks_at_once)


def tile_rate(rows: int, vectors: int) -> float:
    """The fraction of the arithmetic rate that a tile of the CPU reaches, given its loads for each value of k: its vectors, and a value
    of each row."""
    return rows * vectors / (rows * vectors + READ * (rows + vectors))


def block(c: Matmul, p: Product, k: int, target: Target) -> Block:
    """A block of the product `p` over so many values of k."""
    itemsize = p.dtype.itemsize
    padded = -(-k // c.block_k) * c.block_k  # zeros are multiplied, and evaluated, as well
    if c.runs > 1:  # and copied
        k = padded
    tensor_cores = _tensor_cores(c)
    kind = f"mma{8 * itemsize}" if tensor_cores else "dot8" if p.dtype.is_int else "fma"
    if c.instruction == "words":
        kind = by_words(p.dtype, target.instructions)
    rate = target.flops[kind] / target.workers / c.passes
    deep = padded if tensor_cores else k
    work = (
        (1 if c.sparse else 2)
        * c.block_m
        * c.block_n
        * deep
        / (rate * _efficiency(c, target, wide=p.dtype is DType.F32))
    )
    if target.has.register_tiles:
        if c.instruction == "outer":
            lanes = target.vector_bytes // (8 if p.dtype is DType.F64 else 4)
            work *= tile_rate(*TILE) / tile_rate(c.block_m, -(-c.block_n // lanes))
        return Block(c, p, target, k, target.latency_seconds, work)
    model = fitted(target.model.matmul)
    sides = ((c.left, c.block_m), (c.right, c.block_n))
    values = narrow = 0.0
    for side, lines in sides:
        if side.through_registers:
            values += lines / side.vector
        elif side.copy == "async" and side.vector * itemsize < target.vector_bytes:
            narrow += lines / side.vector
    scalar = target.flops["fma"] / 2 / target.workers
    down = c.block_m // 64 if c.instruction == "wgmma" else c.warps_m
    read = c.warps_n * c.block_m + down * c.block_n
    if c.sparse:
        read = c.block_n // 64 * c.block_m + int(c.warps_m * c.block_n * c.right_share)
    return Block(
        c,
        p,
        target,
        k,
        fill=target.latency_seconds * _fill(c, k, model),
        work=work,
        evaluated=model.evaluate * values * deep / scalar,
        copied=model.copy * narrow * k / scalar,
        read=read,
        sums=chip_seconds(c.slices * c.block_m * c.block_n, target),
        cores=_cores(c, model),
        tensor=tensor_cores,
    )


def contract_seconds(c: Matmul, p: Product, task: Size, target: Target) -> float:
    """One task's part of the product `p`, its rows and columns rounded up to whole blocks."""
    return task_seconds(block(c, p, task.k, target), task)


def task_seconds(b: Block, task: Size) -> float:
    """The same for given blocks."""
    return sum(_contract_parts(b, task)) + _first_seconds(b, task)


def _first_seconds(b: Block, task: Size) -> float:
    """Seconds of the first loads of a task's right operand, on a target with caches that do not hold it from the call before."""
    c, target = b.method, b.target
    right = task.n * task.k * b.product.dtype.itemsize
    anew = c.right.copy == "panels" or right > target.shared_bytes / 4
    return right / target.dram_bandwidth if target.has.register_tiles and anew else 0.0


def rounds_seconds(
    b: Block, c: Matmul, problem: Problem, task: Size, rounds: int, after: float
) -> float:
    """`rounds` tasks of such blocks of a worker with their epilogues, one after the other, or in teams. c: the block's method, which may
    prefetch operands of the next task. after: seconds of a task's epilogue."""
    target = b.target
    fill, busy, finish = _contract_parts(b, task)
    finish += after
    if target.has.register_tiles:
        beside = -(-problem.size.m // task.m) if c.instruction == "outer" else 1
        return rounds * (fill + busy + finish + _first_seconds(b, task) / beside)
    if rounds == 1:
        return fill + busy + finish
    model = fitted(target.model.matmul)
    again = (rounds - 1) * model.again * target.latency_seconds
    if c.following:  # the next products' start overlaps with these sums
        each = fill + rounds * (busy + finish) + max(0.0, again + (rounds - 1) * (fill - finish))
        goes_on = -(-task.k // c.block_k) % c.depth == 0
        rests = (rounds - 1) * (1 if goes_on else model.drained)
        shown = fill + finish + rests * target.latency_seconds
    else:
        each = again + _in_rounds(c, fill, busy, finish, rounds, model)
        shown = again + rounds * (fill + finish) / c.teams
    itemsize = problem.product.dtype.itemsize
    least = (
        rounds
        * (task.m + task.n * c.right_share)
        * task.k
        * itemsize
        / (model.apart * target.worker_bandwidth)
    )
    return max(least, each, _memory_seconds(c, problem.memory, itemsize, target) + shown)


def epilogue_seconds(problem: Problem, task: Size, target: Target) -> float:
    """The element-wise epilogue of a task's sums."""
    results = task.m * task.n // problem.products
    return results * problem.operations / (target.flops["fma"] / 2 / target.workers)


def _memory_seconds(c: Matmul, memory: Memory, itemsize: int, target: Target) -> float:
    """Seconds of loads from memory, given the copies in flight: a worker's share of the bandwidth limits them."""
    if not memory.left and not memory.right:
        return 0.0
    chunks = c.slices * c.teams * (c.depth - (2 if c.instruction == "wgmma" and c.depth > 3 else 1))
    latency = fitted(target.model.matmul).memory_latency * target.latency_seconds
    wanted = latency * target.dram_bandwidth / target.workers
    lines = (c.block_m, c.block_n * c.right_share)
    blocks = zip((memory.left, memory.right), lines, strict=True)
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
    # One team's epilogue overlaps with the products of another, except the last.
    each = fill + c.teams * busy + (c.teams - 1) * finish
    last = fill + model.alone * busy + c.teams * finish if alone else finish
    return together * each + last


def _contract_parts(b: Block, task: Size) -> tuple[float, float, float]:
    """Seconds of a task before its products, for them, and for its sums."""
    c, p, target = b.method, b.product, b.target
    m, n, k, itemsize = task.m, task.n, b.k, p.dtype.itemsize
    blocks = -(-m // c.block_m) * -(-n // c.block_n)
    if target.has.register_tiles:  # a task's operands stay in the caches between blocks
        moved = (m + n) * k * itemsize / target.worker_bandwidth
        read = ("direct", "panels", "runs")
        packed = (c.left.copy not in read) * m + (c.right.copy not in read) * n
        if c.instruction == "words":
            packed = packed_lines(c, Size(m, n, k))
        packing = 2 * packed * k * itemsize / target.worker_bandwidth
        return b.fill, packing + max(moved, blocks * b.work), 0.0
    model = fitted(target.model.matmul)
    along = min(c.block_k, p.near or c.block_k) * c.runs
    rows, columns = min(c.block_m, m), min(c.block_n, n)
    left = rows * c.runs / line_use(c.left, rows, along, itemsize, model)
    right = columns * c.right_share / line_use(c.right, columns, c.block_k, itemsize, model)
    moved = (left + right) * k * itemsize / target.worker_bandwidth
    busy, finish = _products(b, moved, (rows, columns))
    return blocks * b.fill, blocks * (b.evaluated + busy), blocks * finish


def _products(b: Block, moved: float, tile: tuple[int, int]) -> tuple[float, float]:
    """The products of a block and its epilogue. moved: the bytes that its copies move. tile: its rows and columns.

    For tensor cores, copied operands are written to on-chip memory and read from there, as often as instructions load them. Warps that
    load fragments for mma.sync issue no copies meanwhile; the loads of wgmma are hidden.
    """
    c, target = b.method, b.target
    model, cores = fitted(target.model.matmul), fitted(b.cores)
    moved = max(moved, (1 - cores.hides) * b.copied) if cores.hides else moved + b.copied
    if not b.tensor:
        return max(moved, b.work), 2 * b.sums
    in_parts = c.in_parts
    read = _read_in_parts(c, tile) if in_parts else b.read
    written = tile[0] * c.runs + tile[1] * c.right_share * c.runs
    chip = b.product.dtype.itemsize * b.k * (written + read) / target.worker_bandwidth
    moved, chip = moved / cores.path, chip / cores.chip
    chip = chip / model.sparse if c.sparse else chip
    if c.instruction == "wgmma":
        parts = (moved, chip, b.work)
        shown = (
            1.0 if in_parts and b.evaluated else model.shows
        )  # products end before operands are evaluated
        busy = (1 - shown) * max(parts) + shown * sum(parts)
        if in_parts:  # a chunk's left operand is split, and its sums added, while only other groups have products
            busy += (
                -(-b.k // c.block_k)
                * model.parts
                * target.latency_seconds
                / (c.slices * c.teams) ** 2
            )
        elif b.product.dtype is DType.F32:  # warps round a chunk before its products
            vectors = b.k * _rounded(b, tile)
            busy += model.rounding * vectors * target.vector_bytes / target.worker_bandwidth
    else:
        busy = max(moved, chip) + b.work
    return busy, cores.finish * chip_seconds(tile[0] * tile[1], target) + model.sums * b.sums


def _read_in_parts(c: Matmul, tile: tuple[int, int]) -> int:
    """Values that warpgroups read on chip for one of k: left ones into registers, right ones twice, and their remainders beyond TF32
    once, which are also written and read."""
    return c.warps_n * tile[0] + 3 * (c.warps_m // 4) * c.block_n + 2 * tile[1]


def _rounded(b: Block, tile: tuple[int, int]) -> float:
    """Vectors of operands that threads round, for one value of k."""
    sides = zip(tile, (b.method.left, b.method.right), b.product.rounded, strict=True)
    return sum(n / side.vector for n, side, done in sides if not done)


def _tensor_cores(c: Matmul) -> bool:
    return c.instruction in ("mma", "wgmma")


def _cores(c: Matmul, model: Model) -> TensorCores:
    """The figures of the product's instruction; for scalar products only those of the work that hides copies are used."""
    return fitted(model.groups) if c.instruction == "wgmma" else model.warps


def _fill(c: Matmul, k: int, model: Model) -> float:
    """Latencies before the first products, and those in which warps wait for each other and for room in the ring."""
    steps = -(-k // (c.block_k * c.slices))
    several = c.warps_m * c.warps_n > 1
    if _tensor_cores(c):
        cores = _cores(c, model)
        return cores.fill + cores.step * (steps if several else 0)
    waits = steps * model.scalar_step if several else 0.0
    rounds = -(-steps // (c.depth - 1))  # of copies that wait for room in the ring
    return 1 + waits + 0.5 * (rounds - 1)


def store_seconds(results: int, stored: int, size: int, target: Target) -> float:
    """Seconds of the stores of a product's results, of all tasks together, if they are wider than the operands.

    results: their number. stored, size: bytes of a result, and of an operand's element.
    """
    if target.has.register_tiles or stored <= size:
        return 0.0
    cost = fitted(target.model.matmul).write
    return cost * results * stored / (target.worker_bandwidth * target.workers)


def _efficiency(c: Matmul, target: Target, *, wide: bool) -> float:
    """The fraction of the arithmetic rate that a warp's tile, or a thread's, can reach. wide: of float32."""
    match c.instruction:
        case "mma" if c.runs > 1:  # of each run's own fragments
            return fitted(target.model.matmul).run_rate * min(1.0, c.block_n / c.runs / 8)
        case "mma" | "wgmma":
            return _cores(c, fitted(target.model.matmul)).wide if wide else 1.0
        case "fma":  # a thread's tile is about square: operands read, relative to their products
            side = (c.block_m // c.warps_m * c.block_n // c.warps_n / 32) ** 0.5
            model = fitted(target.model.matmul)
            return model.scalar_rate * min(1.0, side / model.scalar_side)
        case "outer":
            return fitted(target.model.register_tiles).outer
        case "dot":
            return fitted(target.model.register_tiles).dot
        case "words":
            return 1.0
