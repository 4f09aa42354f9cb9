"""The blocks into which products may be cut (Roller's rTiles), and the on-chip memory that each needs."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from monotile.analysis.runs import whole_runs
from monotile.ir.dtype import DType
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.product import RUNS_VECTOR, Product
from monotile.kernels.common.sparse import SPARSE_CHUNK, SPARSE_VECTOR
from monotile.kernels.draft import Context
from monotile.kernels.matmul.cost import Block, Floor, block, task_seconds, tile_rate
from monotile.kernels.matmul.memory import (
    LINE_BYTES,
    chunk_bytes,
    contract_bytes,
    rest_bytes,
    sum_bytes,
)
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.problem import Size
from monotile.kernels.matmul.words import word_blocks
from monotile.plan.nodes import Prefetch
from monotile.targets.model import fitted
from monotile.targets.target import Target

# Multiplications from which on few rows also go to tensor cores, where they half fill an instruction: dot products of 8 x 4096 x 4096 took
# 44 us, of 8 x 25088 x 4096 491, of twenty 8 x 1024 x 256 14.5 (H100).
MUCH = 1 << 25
CHUNK = 512  # values of k times vectors of columns of a panel that stays in the first-level cache
MOST_HELD = (
    32  # values of an evaluated operand's chunk that a thread computes before it stores them
)


@dataclass(frozen=True)
class Way:
    """A way to cut a product: its on-chip bytes, and the cost of a block."""

    method: Matmul
    nbytes: int
    block: Block

    @functools.cached_property
    def floor(self) -> Floor:
        """A lower bound of its seconds, whatever the number of workers."""
        return self.block.floor


def ways(p: Product, size: Size, context: Context) -> tuple[Way, ...]:
    """The result of `blocks`. Products that sum as many values share what they have in common."""
    target, once = context.target, context.of_worker.once
    sums = _sums_key(p)

    def found() -> tuple[Way, ...]:
        known = once(("blocks", *sums, size.k), dict[Matmul, Way])
        return tuple(known.get(c) or new(known, c) for c in blocks(p, size, target))

    def new(known: dict[Matmul, Way], c: Matmul) -> Way:
        nbytes = scratch_bytes(c, p.dtype.itemsize, target)
        return known.setdefault(c, Way(c, nbytes, block(c, p, size.k, target)))

    return once(("ways", *cut_key(p, size)), found)


def ranked(p: Product, size: Size, context: Context) -> tuple[tuple[float, Matmul, int], ...]:
    """`ways` with the seconds of one task that computes the whole product, the fastest first."""

    def found() -> tuple[tuple[float, Matmul, int], ...]:
        timed = ((task_seconds(w.block, size), w.method, w.nbytes) for w in ways(p, size, context))
        return tuple(sorted(timed, key=lambda way: way[0]))

    return context.of_worker.once(("ranked", *cut_key(p, size)), found)


def cut_key(p: Product, size: Size) -> tuple[object, ...]:
    """A key of all inputs of `blocks`, and of the cost of a block."""
    return (*_sums_key(p), size.m, size.n, size.k, _much(size))


def _sums_key(p: Product) -> tuple[object, ...]:
    """The part of that key that is not a size."""
    runs = (bool(p.grain_m), p.runs, p.part, p.near, p.coded, p.bounded, p.rounded, p.sparse)
    return (p.k, p.left, p.right, p.dtype, p.passes, *runs)


def _much(size: Size) -> bool:
    return size.m * size.n * size.k * size.batches >= MUCH


def blocks(p: Product, size: Size, target: Target) -> Iterator[Matmul]:
    """Every way to cut a product of this size that the target's instructions allow (Roller's rTiles)."""
    if target.has.register_tiles:
        yield from _cpu_blocks(p, size, target)
        yield from word_blocks(p, size, target)
        return
    if p.dtype is DType.F32:
        yield from _cuda_blocks(p, size, target, "fma")
    if p.passes == 0 or "mma.sync" not in target.instructions:
        return
    yield from _cuda_blocks(p, size, target, "mma")
    if "wgmma" in target.instructions and _for_warpgroups(p):
        yield from _warpgroup_blocks(p, size, target)
    if p.sparse:
        yield from _sparse_blocks(p, size, target)
    if p.runs > 1:
        yield from _run_blocks(p, size, target)


def _for_warpgroups(p: Product) -> bool:
    """Whether warpgroups can read the operands from on-chip memory in their layout: along k, or 16-bit ones along their rows or columns.
    Warps are faster for left operands whose sums end early, since these are short (H100, 32 columns a list: 277 µs, by warpgroups
    310)."""
    majors = ("k", "mn") if p.dtype.itemsize == 2 else ("k",)
    return p.left.major in (("k",) if p.bounded else majors) and p.right.major in majors


def _cpu_blocks(p: Product, size: Size, target: Target) -> Iterator[Matmul]:
    """One register tile. Few rows: dot products, which read the right side once and in place. Else rows times vectors of columns. A
    right side that is contiguous along k is transposed in panels, which takes a twelfth of the time at 128 rows, unless there is a
    copy in panels."""
    lanes = target.vector_bytes // (8 if p.dtype is DType.F64 else 4)
    many = target.vector_bytes >= 64  # and then 32 registers instead of 16
    if p.dtype.is_int:
        if p.left.copy == p.right.copy == "direct" and p.left.major == p.right.major == "k":
            yield Matmul(
                m=0, n=0, k=p.k, block_m=min(size.m, 4 if many else 2), block_n=4, block_k=2048,
                instruction="dot", left=p.left, right=p.right,
            )  # fmt: skip
        return
    if (
        p.left.major == "k"
        and p.right.major == "k"
        and size.m <= fitted(target.model.register_tiles).dot_rows
    ):
        yield Matmul(
            m=0, n=0, k=p.k, block_m=min(size.m, 4 if many else 3), block_n=4, block_k=1024,
            instruction="dot", left=p.left, right=Operand("k", 1, "direct"),
        )  # fmt: skip
        if p.right.copy != "panels":
            return
    read = p.right.copy == "panels" or p.right.major == "mn"
    right = p.right if read else Operand(p.right.major, 1, "element")
    registers = 32 if many else 16
    widest = (4, 2) if many else (2,)
    for rows, vectors in dict.fromkeys(_outer_tile(size, lanes, registers, w) for w in widest):
        deep = CHUNK // vectors // 16 * 16
        yield Matmul(
            m=0, n=0, k=p.k, block_m=rows, block_n=vectors * lanes,
            block_k=whole_runs(p.near, deep) if p.left.copy == "runs" else deep,
            instruction="outer", left=p.left, right=right,
        )  # fmt: skip


def _outer_tile(size: Size, lanes: int, registers: int, most: int) -> tuple[int, int]:
    """Rows, and vectors of columns (`most` at most), of the fastest tile whose sums, vectors and one value of a row fit the registers."""

    def seconds(tile: tuple[int, int]) -> float:
        tiles = -(-size.m // tile[0]) * -(-size.n // (tile[1] * lanes))
        return tiles * tile[0] * tile[1] / tile_rate(*tile)

    found = itertools.product(range(8, 3, -1), range(most, 0, -1))
    return min((t for t in found if (t[0] + 1) * t[1] < registers), key=seconds)


def _cuda_blocks(
    p: Product, size: Size, target: Target, instruction: Literal["mma", "fma"]
) -> Iterator[Matmul]:
    mma = instruction == "mma"
    itemsize = p.dtype.itemsize
    chunks = tuple(n // itemsize for n in ((128, 64, 32) if mma else (128, 64)))
    sums = MOST_SUMS // (2 if p.passes > 1 else 1)  # each twice, for a chunk and for the whole sum
    # Runs keep their length, and few rows of codes should be decoded once.
    least = 16 if mma and (p.grain_m or p.coded or _much(size)) else 8
    # Sums that end early have much latency to hide: teams that alternate between tasks do.
    teams_and_slices = (*((1, s) for s in (8, 4, 2, 1)), *(((2, 1),) if mma and p.bounded else ()))
    most_m, most_n = 2 * max(size.m, least), 2 * max(size.n, 8)
    tiles = [(m, n) for m, n in _WARP_TILES[mma] if not mma or m * n <= sums * target.warp]
    evaluated = p.left.through_registers or p.right.through_registers
    for block_k, (teams, slices) in itertools.product(chunks, teams_and_slices):
        warps = target.threads // target.warp // teams // slices
        if not warps or slices > max(1, -(-size.k // block_k)):
            continue
        sides = ((m, warps // m) for m in _powers_of_two(warps))
        for (warp_m, warp_n), (warps_m, warps_n) in itertools.product(tiles, sides):
            block_m, block_n = warp_m * warps_m, warp_n * warps_n
            if block_m >= most_m or block_n >= most_n:
                continue
            threads = warps_m * warps_n * target.warp
            if evaluated and _held(p, block_m, block_n, block_k, threads) > MOST_HELD:
                continue
            ring = teams * slices * 2 * (block_m + block_n) * block_k * itemsize
            depth = min(8, -(-size.k // (block_k * slices)) + 1, 2 * target.shared_bytes // ring)
            if depth >= (3 if teams > 1 else 2):
                yield Matmul(
                    m=0, n=0, k=p.k, block_m=block_m, block_n=block_n, block_k=block_k,
                    instruction=instruction, left=p.left, right=p.right, passes=p.passes if mma else 1,
                    warps_m=warps_m, warps_n=warps_n, slices=slices, depth=depth, tasks_at_once=teams,
                )  # fmt: skip


def _run_blocks(p: Product, size: Size, target: Target) -> Iterator[Matmul]:
    """Several adjacent runs of columns."""
    warps, left = target.threads // target.warp, Operand("k", RUNS_VECTOR, "async")
    if size.n % 4 or size.n > MOST_RUN or p.part % 4 or p.part > MOST_RUN:
        return
    deep = math.lcm(16, p.part)
    for runs, block_k, slices, warp_m in itertools.product(
        (r for r in range(2, p.runs + 1) if p.runs % r == 0), (deep, 2 * deep), (1, 2), (16, 32)
    ):
        line = runs * p.part
        if line % RUNS_VECTOR or line > MOST_LINE or slices > -(-size.k // block_k):
            continue
        for warps_m in _powers_of_two(warps // slices):
            warps_n = warps // slices // warps_m
            block_m, block_n = warp_m * warps_m, runs * size.n
            if runs % warps_n or block_m >= 2 * max(size.m, 16):
                continue
            sums = warp_m // 16 * (runs // warps_n) * -(-size.n // 8) * 4
            copies = block_m * block_k * runs // (RUNS_VECTOR * (target.threads // slices))
            if sums > MOST_SUMS or copies > MOST_COPIES:
                continue
            ring = slices * (block_m * runs + block_n) * block_k * 2
            depth = min(8, -(-size.k // (block_k * slices)) + 1, target.shared_bytes // ring)
            if depth >= 2:
                yield Matmul(
                    m=0, n=0, k=p.k, block_m=block_m, block_n=block_n, block_k=block_k,
                    instruction="mma", left=left, right=p.right,
                    warps_m=warps_m, warps_n=warps_n, slices=slices, depth=depth, runs=runs,
                )  # fmt: skip


def _held(p: Product, block_m: int, block_n: int, block_k: int, threads: int) -> int:
    """Vectors of an operand's chunk that a thread evaluates; the code of each is unrolled."""
    most = 0
    if p.left.through_registers:
        most = -(-block_m * block_k // (p.left.vector * threads))
    if p.right.through_registers:
        most = max(most, -(-block_n * block_k // (p.right.vector * threads)))
    return most


def _warpgroup_shapes(target: Target) -> tuple[tuple[int, int, int, int, int], ...]:
    """How warpgroups may divide a block: slices of K, teams, warpgroups along the side of which each has 64, those along the other side,
    and how many times 64 each has."""
    groups = target.threads // (4 * target.warp)
    return (
        (groups, 1, 1, 1, 1), (1, 1, groups, 1, 1), (1, 1, 1, groups, 1), (1, 1, groups, 1, 2),
        (1, groups, 1, 1, 1), (1, groups, 1, 1, 2),
    )  # fmt: skip


def _warpgroup_blocks(p: Product, size: Size, target: Target) -> Iterator[Matmul]:
    """Warpgroups of 64 rows, or twice these: each with a part of K, or along the columns, or along the rows, or with a separate block."""
    itemsize = p.dtype.itemsize
    deep = LINE_BYTES // itemsize
    # For a chunk, and for the whole sum: tensor cores keep few bits. Left operands in parts are in registers.
    sums = 2 if p.dtype.is_float8 or p.passes > 1 else 1
    most = 1 if p.passes > 1 else 2
    for (slices, teams, down, across, high), columns in itertools.product(
        _warpgroup_shapes(target), _warpgroup_columns(p)
    ):
        block_m, block_n = 64 * down * high, columns * across
        if (
            block_m >= 2 * max(size.m, 8)
            or block_n >= 2 * max(size.n, 8)
            or high * columns * sums > MOST_COLUMNS
            or high > most
        ):
            continue
        threads = target.threads // (slices * teams)
        if _held(p, block_m, block_n, deep, threads) > MOST_HELD:
            continue
        c = Matmul(
            m=0, n=0, k=p.k, block_m=block_m, block_n=block_n, block_k=deep,
            instruction="wgmma", left=p.left, right=p.right, passes=p.passes, warps_m=4 * down,
            warps_n=across, slices=slices, depth=1, tasks_at_once=teams,
        )  # fmt: skip
        chunk = chunk_bytes(c, itemsize)
        room = target.shared_bytes // (slices * teams) - rest_bytes(c, itemsize)
        depth = min(8, -(-size.k // (deep * slices)) + 1, room // chunk)
        if depth >= (3 if teams > 1 else 2):
            yield msgspec.structs.replace(c, depth=depth)


def _sparse_blocks(p: Product, size: Size, target: Target) -> Iterator[Matmul]:
    """Warpgroups of 64 columns, or twice these, by rows: as those of rows by columns."""
    right = Operand("k", SPARSE_VECTOR, "sparse")
    for (slices, teams, across, down, wide), rows, block_k in itertools.product(
        _warpgroup_shapes(target), (8, *_WARPGROUP_COLUMNS), (SPARSE_CHUNK, 2 * SPARSE_CHUNK)
    ):
        block_m, block_n = rows * down, 64 * across * wide
        if (
            block_m >= 2 * max(size.m, 8)
            or block_n >= 2 * max(size.n, 64)
            or wide * rows > MOST_SPARSE
            or size.k % block_k
        ):
            continue
        c = Matmul(
            m=0, n=0, k=p.k, block_m=block_m, block_n=block_n, block_k=block_k,
            instruction="wgmma", left=p.left, right=right, warps_m=down,
            warps_n=4 * across, slices=slices, depth=1, tasks_at_once=teams,
        )  # fmt: skip
        room = target.shared_bytes // (slices * teams) // chunk_bytes(c, p.dtype.itemsize)
        depth = min(8, -(-size.k // (block_k * slices)) + 1, room)
        if depth >= min(3, -(-size.k // block_k) + 1):
            yield msgspec.structs.replace(c, depth=depth)


def _warpgroup_columns(p: Product) -> tuple[int, ...]:
    """The columns that a warpgroup multiplies at once: whole lines, where the operand is contiguous along the columns; for integers no
    odd groups of eight beyond 24."""
    if p.right.major == "mn":
        return tuple(n for n in _WARPGROUP_COLUMNS if n * p.dtype.itemsize % LINE_BYTES == 0)
    return tuple(n for n in _WARPGROUP_COLUMNS if n != 40 or not p.dtype.is_int)


def followed(c: Matmul, k: int, itemsize: int, target: Target) -> Matmul:
    """`c` for a worker with several tasks, prefetching as many chunks of the next one as its sums leave stages free, if it can: in a
    ring that the chunks of a task divide into evenly, if there is one, so that it continues with the next task's. itemsize: bytes of
    an operand's element."""
    if (
        c.slices > 1
        or c.teams > 1
        or c.left.copy != "async"
        or c.right.copy not in ("async", "sparse")
    ):
        return c
    if c.instruction not in ("wgmma", "mma"):
        return c
    chunks = -(-k // c.block_k)
    room = (target.shared_bytes - sum_bytes(c)) // chunk_bytes(c, itemsize)
    depth = next((d for d in range(c.depth, max(3, c.depth - 3), -1) if chunks % d == 0), c.depth)
    if chunks % depth:
        most = min(c.depth - 1, chunks, room)
    else:
        most = min(
            depth - 1 - (depth > 3), room
        )  # a stage is filled when its last products are done
    ahead = (Prefetch("both", "task", most),) if most > 0 else ()
    return msgspec.structs.replace(c, depth=depth, prefetch=ahead)


def _powers_of_two(most: int) -> Iterator[int]:
    value = 1
    while value <= most:
        yield value
        value *= 2


def _shares(warp_m: int, warp_n: int) -> bool:
    """Whether 32 lanes can divide the tile evenly as a grid of lanes, with no more than 64 sums each."""
    return warp_m * warp_n <= 2048 and any(
        warp_m % lanes == 0 and warp_n % (32 // lanes) == 0 for lanes in (2, 4, 8, 16)
    )


MOST_COLUMNS = 256  # that a warpgroup accumulates, of all its parts of 64 rows
MOST_SPARSE = 384  # of a sparse right operand
# As in device/cuda/ptx/sm_90a.cuh.
_WARPGROUP_COLUMNS = (16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
# The most that one warp accumulates: 96 sums a thread for the tensor cores, 64 for scalar products.
_SIDES = (8, 16, 24, 32, 40, 48, 64)
_WARP_TILES = {
    True: tuple((m, n) for m in (16, 32, 48, 64) for n in _SIDES if m * n <= 64 * 48),
    False: tuple((m, n) for m in _SIDES for n in _SIDES if _shares(m, n)),
}


MOST_RUN = 16  # columns, and values of k: longer ones are separate products
MOST_LINE = 64  # contiguous elements of several runs: 128 bytes
MOST_SUMS, MOST_COPIES = 96, 24  # of a thread; the code of each copy of a chunk is unrolled


def within_run(tile: int, grain: int, target: Target) -> int:
    """A tile of about this size within which no run of `grain` ends: at most so large where a tile is one block."""
    if not grain or tile >= grain:
        return grain or tile
    fitting = [d for d in range(1, grain + 1) if grain % d == 0]
    if target.has.register_tiles:
        return next(d for d in fitting if d >= tile)
    return max(d for d in fitting if d <= tile)


def scratch_bytes(c: Matmul, itemsize: int, target: Target) -> int:
    """On-chip memory that a contraction uses itself: rings of operand chunks, then partial sums. itemsize: of an operand's element."""
    if target.has.register_tiles:
        panels = (c.left.copy == "element") * c.block_m + (c.right.copy == "element") * c.block_n
        return panels * c.block_k * 8
    return contract_bytes(c, itemsize)
