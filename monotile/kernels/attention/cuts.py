"""Candidates for softmax-weighted sums as one step: streamed along the keys, with scores that never leave a worker's registers."""

import itertools
import math
from collections.abc import Iterator, Mapping

import msgspec

from monotile.ir.dtype import DType
from monotile.ir.expr import loads
from monotile.ir.program import Compute
from monotile.kernels.attention.cost import attend_seconds
from monotile.kernels.attention.match import Attention, attention
from monotile.kernels.attention.memory import attend_bytes
from monotile.kernels.attention.method import DIRECT_DEPTHS, DIRECT_RUN, Attend
from monotile.kernels.attention.runs import usual_keys
from monotile.kernels.common import cost
from monotile.kernels.common.cost import round_up
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.product import HALVES, MIN_SIDE, Product, product
from monotile.kernels.draft import Context, Draft
from monotile.kernels.family import Match
from monotile.kernels.group import Group
from monotile.plan.nodes import Dim, Step
from monotile.targets.model import fitted
from monotile.targets.target import Target

BLOCKS = (16, 32, 48, 64)
CHUNKS = (16, 32, 64)
WIDE_CHUNKS = (8, 16, 32)  # of float32
DEPTHS = (2, 3, 4)
GROUPS = 2  # warpgroups of a worker, which use the tensor cores in turn
# Features and columns of warpgroups, in lines of 64, the last of which need not be whole.
GROUP_SIZES = range(32, 129, 8)
GROUP_CHUNKS = (32, 64, 128)
GROUP_DEPTHS = (2, 3, 4, 5, 6)
DIRECT_BLOCKS = (16, 32)
VECTOR = 8  # elements of 16 bytes
DIRECT_ROWS = 32  # more rows are worth a ring
MOST_DIRECT = 176  # registers of a thread for operands, scores and results
MOST_SUMS = 144  # registers of a thread for scores and results
MOST_WIDE_SUMS = 144  # the same for float32, whose exponentials are held twice


def match(result: Compute, computes: Mapping[str, Compute], context: Context) -> Match | None:
    """The softmax-weighted sum that ends in `result`. In 16 bits on tensor cores it is one streamed step, where heads are narrow enough
    to fit. Elsewhere tasks may hold some rows of scores, if the scores are too large for the caches."""
    target = context.target
    found = attention(result, computes)
    if found is None:
        return None
    if "mma.sync" in target.instructions and any(True for _ in _fitting(found, target)):
        kept = (found.top, found.total) if found.shares is None else ()
        names = frozenset(s.out.name for s in kept)
        return Match(found.inner, found, names, faster=found.size == 2)
    if found.shares is None:
        return None
    large = found.products.out.nbytes > target.l2_bytes * target.model.common.kept
    return Match(found.inner, None) if large else None


def _sides(found: Attention, target: Target) -> tuple[Operand, Operand, Operand] | None:
    """How queries, keys and values are loaded; None where tensor cores cannot take them, or have too few rows at once. A part may have a
    single one: its keys and values take longer to load than to multiply."""
    scores, mixture = (product(s, {}, target, least=1) for s in (found.products, found.result))
    few = found.shares is not None and found.run * _rows(found) < MIN_SIDE
    if few or found.key.extent < MIN_SIDE:
        return None
    if scores is None or mixture is None or len(found.products.reduce) != 1:
        return None
    if not _multiplied(found, scores, mixture):
        return None
    query, key = scores.left, scores.right
    if scores.swapped != found.swapped[0]:
        query, key = key, query
    value = mixture.left if mixture.swapped != found.swapped[1] else mixture.right
    return _copied(query), _copied(key), _copied(value)


def _copied(o: Operand) -> Operand:
    """The operand as attention's panels can take it: only products can assemble vectors from the aligned ones around them."""
    return Operand("none", 1, "element") if o.copy == "unaligned" else o


def _multiplied(found: Attention, scores: Product, mixture: Product) -> bool:
    """Whether tensor cores multiply the operands in their own types: not float32 for a part of the keys (it has few rows), nor anything
    narrower."""
    if scores.dtype is not mixture.dtype:
        return False
    if scores.dtype in HALVES:
        return True
    operands = {x.dtype for x in (found.queries, found.keys, found.values)}
    return scores.dtype is DType.F32 and operands == {DType.F32} and found.shares is not None


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """Every way to cut a group that is one streamed step."""
    found, target = group.match, context.target
    if not isinstance(found, Attention):
        return
    names = tuple(s.out.name for s in group.statements())
    columns = found.result.axes[found.column].extent
    features, keys = found.products.reduce[0].extent, usual_keys(found)
    transcendental = target.model.common.transcendental
    after = sum(cost.operations(s, transcendental) for s in found.scores)
    after += fitted(target.model.attention).softmax
    for method, rows, scratch in _fitting(found, target):
        spent = attend_seconds(method, features, columns, keys, after, found.size, target)
        dims, grid = _dims(found, rows)
        at = len(dims) - 2
        step = Step(names, dims, msgspec.structs.replace(method, m=at, n=at + 1), scratch_bytes=scratch)  # fmt: skip
        waves = -(-math.prod(grid) // target.workers)
        yield Draft(group, grid, (step,), {}, scratch, waves * spent)


def _fitting(found: Attention, target: Target) -> Iterator[tuple[Attend, Dim, int]]:
    """Every streamed step that fits registers and on-chip memory: its method, the rows of a task, and its on-chip bytes."""
    sides = _sides(found, target)
    if sides is None:
        return
    query, key, value = sides
    columns = found.result.axes[found.column].extent
    features = found.products.reduce[0].extent
    base = Attend(
        result=len(found.inner), m=0, n=0, block_m=0, chunk=0, depth=0,
        query=query, key=key, value=value, along=found.along, queries_second=found.swapped[0],
        weights_second=found.swapped[1], least=found.least, scale=found.scale,
        part=found.shares is None, passes=found.passes,
    )  # fmt: skip
    warps = target.threads // target.warp
    few = found.run * _rows(found) <= DIRECT_ROWS
    direct = list(_direct(base, found, columns)) if few else []
    several = (ways if found.size == 2 else wide_ways)(base, features, columns, target)
    for block in direct or several:
        for tile in _blocks(found, block.block_m):
            method, rows = _fitted(block, tile)
            scratch = attend_bytes(method, features, columns, warps, found.size)
            if scratch <= target.shared_bytes:
                yield method, rows, scratch


def _fitted(a: Attend, rows: Dim) -> tuple[Attend, Dim]:
    """Both with no more rows than there are, where nothing is copied in whole tiles."""
    if not a.direct:
        return a, rows
    tile = min(rows.tile, rows.extent)
    return msgspec.structs.replace(a, block_m=tile), msgspec.structs.replace(rows, tile=tile)


def _rows(found: Attention) -> int:
    """Rows of one head."""
    return math.prod(found.result.axes[p].extent for p in found.rows)


def _blocks(found: Attention, block: int) -> Iterator[Dim]:
    """The rows that a task may have, at most a block: of one head, or of heads that share keys."""
    rows, axes = _rows(found), found.result.axes
    if (rows >= MIN_SIDE or found.heads is None) and (block <= 16 or block < 2 * rows):
        yield Dim(found.rows, rows, block, 0)
    together = found.run * rows
    if found.heads is None or (block > 16 and block >= 2 * together):
        return
    tile = next(d for d in range(min(block, together), 0, -1) if together % d == 0)
    if 2 * tile > block or tile == together:
        yield Dim((found.heads, *found.rows), axes[found.heads].extent * rows, tile, 0)


def _dims(found: Attention, rows: Dim) -> tuple[tuple[Dim, ...], tuple[int, ...]]:
    """The step's dims, batches first, and the stage's grid. rows: those of a task, whose position in the grid is chosen here: after the
    batches, which share keys then; or before them where runs of rows have different keys, so that the tasks of a worker are of runs
    far apart."""
    axes = found.result.axes
    batch = [p for p in range(len(axes)) if p not in (*rows.axes, found.column)]
    in_front = any(x.at for x in found.result.live)
    dims = [Dim((p,), axes[p].extent, 1, k + in_front) for k, p in enumerate(batch)]
    dims.append(msgspec.structs.replace(rows, stage=0 if in_front else len(batch)))
    dims.append(Dim((found.column,), axes[found.column].extent, axes[found.column].extent, None))
    many, tiles = [axes[p].extent for p in batch], -(-rows.extent // rows.tile)
    return tuple(dims), (tiles, *many) if in_front else (*many, tiles)


def wide_ways(base: Attend, _features: int, columns: int, _target: Target) -> Iterator[Attend]:
    """`base` for float32. A thread holds exponentials twice: the TF32 part and the rest."""
    for block, chunk, depth in itertools.product(BLOCKS, WIDE_CHUNKS, DEPTHS):
        if block // 16 * (chunk // 4 + round_up(columns, 8) // 8) * 4 <= MOST_WIDE_SUMS:
            yield msgspec.structs.replace(base, block_m=block, chunk=chunk, depth=depth)


def ways(base: Attend, features: int, columns: int, target: Target) -> Iterator[Attend]:
    """`base` with each instruction that its operands allow, and all ways to cut that fit a thread's registers."""
    for block, chunk, depth in itertools.product(BLOCKS, CHUNKS, DEPTHS):
        if block // 16 * (chunk // 8 + round_up(columns, 8) // 8) * 4 <= MOST_SUMS:
            yield msgspec.structs.replace(base, block_m=block, chunk=chunk, depth=depth)
    if "wgmma" not in target.instructions or not _straight(base):
        return
    if any(round_up(n, 8) not in GROUP_SIZES for n in (features, columns)):
        return
    if target.threads // target.warp != 4 * GROUPS:
        return
    for down, chunk, depth in itertools.product((1, GROUPS), GROUP_CHUNKS, GROUP_DEPTHS):
        if down == 1 or depth > 2:  # those of one block share a ring
            yield msgspec.structs.replace(
                base, block_m=64 * down, chunk=chunk, depth=depth, instruction="wgmma"
            )


def _straight(a: Attend, *, computed: bool = False) -> bool:
    """Whether features, and columns of the values, are contiguous in memory; computed: or keys and values are computed in whole vectors
    of these."""

    def wide(o: Operand) -> bool:
        return o.copy == "async" or (computed and o.copy == "element" and o.vector == VECTOR)

    lie = tuple(o.major for o in (a.query, a.key, a.value)) == ("k", "k", "mn")
    return lie and a.query.copy == "async" and wide(a.key) and wide(a.value)


def _direct(base: Attend, found: Attention, columns: int) -> Iterator[Attend]:
    """`base`, for a part, with operands that warps load into their registers, or decode there: there are few rows, and the ring through
    which weights stream (`plan.launch.Ring`) gets the on-chip memory."""
    features = found.products.reduce[0].extent
    if (
        not base.part
        or not _straight(base, computed=True)
        or features % DIRECT_RUN
        or columns % DIRECT_RUN
    ):
        return
    if base.value.copy == "element" and columns % (8 * VECTOR):
        return
    query, key, value = (
        msgspec.structs.replace(o, copy="direct") for o in (base.query, base.key, base.value)
    )
    coded = "element" in (base.key.copy, base.value.copy)
    scaled = coded and max(len(set(loads(x))) for x in (found.keys, found.values)) > 1
    for block, chunk, depth in itertools.product(DIRECT_BLOCKS, CHUNKS, DIRECT_DEPTHS):
        tiles = block // 16
        own = chunk * (features + columns) // 64  # words of a lane, of a chunk
        held = depth * own
        if coded:  # a byte each, with the values that keys share; a chunk at a time is decoded
            held = depth * (own // 2 + scaled * chunk // 2) + own
        sums = tiles * ((chunk + columns) // 2 + features // 4)
        if held + sums <= MOST_DIRECT:
            yield msgspec.structs.replace(
                base, block_m=block, chunk=chunk, depth=depth, query=query, key=key, value=value
            )
