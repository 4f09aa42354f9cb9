"""Softmax-weighted sums as one step: streamed along the keys, with scores that never leave a worker's registers."""

import itertools
import math
from collections.abc import Iterator, Mapping

import msgspec

from monotile.ir.program import Compute
from monotile.kernels.attention.cost import attend_seconds
from monotile.kernels.attention.match import Attention, attention
from monotile.kernels.attention.memory import attend_bytes
from monotile.kernels.attention.method import Attend
from monotile.kernels.common import cost
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.product import product
from monotile.kernels.draft import Context, Draft
from monotile.kernels.family import Match
from monotile.kernels.group import Group
from monotile.plan.nodes import Dim, Step
from monotile.targets.model import fitted
from monotile.targets.target import Target

BLOCKS = (16, 32, 48, 64)
CHUNKS = (16, 32, 64)
DEPTHS = (2, 3, 4)
GROUPS = 2  # warpgroups of a worker, which have the tensor cores in turn
GROUP_SIZES = (64, 128)  # features and columns of warpgroups: whole lines of 128 bytes
GROUP_CHUNKS = (32, 64, 128)
GROUP_DEPTHS = (2, 3, 4, 5, 6)
MOST_SUMS = 144  # registers of a thread for scores and results


def match(result: Compute, computes: Mapping[str, Compute], context: Context) -> Match | None:
    """The softmax-weighted sum that ends in `result`. In 16 bits on tensor cores it is one streamed step. Elsewhere tasks hold some
    rows of scores, if the scores are too large for the caches to keep."""
    target = context.target
    found = attention(result, computes)
    if found is None:
        return None
    if "mma.sync" in target.instructions and _sides(found, target) is not None:
        return Match(found.inner, found)
    large = found.products.out.nbytes > target.l2_bytes * target.model.common.kept
    return Match(found.inner, None) if large else None


def _sides(found: Attention, target: Target) -> tuple[Operand, Operand, Operand] | None:
    """How queries, keys and values are read; None where tensor cores cannot take them."""
    scores, mixture = (product(s, {}, target) for s in (found.products, found.result))
    if scores is None or mixture is None or len(found.products.reduce) != 1:
        return None
    if not (scores.half and mixture.half and scores.dtype is mixture.dtype):
        return None
    if found.result.axes[found.column].extent % 8:
        return None
    query, key = scores.left, scores.right
    if scores.swapped != found.swapped[0]:
        query, key = key, query
    value = mixture.left if mixture.swapped != found.swapped[1] else mixture.right
    return query, key, value


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """Every way to cut a group that is one streamed step."""
    found, target = group.match, context.target
    if not isinstance(found, Attention):
        return
    names = tuple(s.out.name for s in group.statements())
    sides = _sides(found, target)
    assert sides is not None
    query, key, value = sides
    result = found.result
    rows, columns = result.axes[found.row].extent, result.axes[found.column].extent
    features, keys = found.products.reduce[0].extent, found.key.extent
    batch = tuple(p for p in range(len(result.axes)) if p not in (found.row, found.column))
    transcendental = target.model.common.transcendental
    after = sum(cost.operations(s, transcendental) for s in found.scores)
    after += fitted(target.model.attention).softmax
    base = Attend(
        result=names.index(result.out.name), m=len(batch), n=len(batch) + 1, block_m=0, chunk=0, depth=0,
        query=query, key=key, value=value, along=found.along, queries_second=found.swapped[0],
        weights_second=found.swapped[1], least=found.least, scale=found.scale,
    )  # fmt: skip
    for method in ways(base, features, columns, target):
        scratch = attend_bytes(method, features, columns, target.threads // target.warp)
        block = method.block_m
        if scratch > target.shared_bytes or (block > 16 and block >= 2 * rows):
            continue
        dims = [Dim((p,), result.axes[p].extent, 1, k) for k, p in enumerate(batch)]
        dims.append(Dim((found.row,), rows, block, len(batch)))
        dims.append(Dim((found.column,), columns, columns, None))
        grid = (*(result.axes[p].extent for p in batch), -(-rows // block))
        spent = attend_seconds(method, features, columns, keys, after, target)
        waves = -(-math.prod(grid) // target.workers)
        step = Step(names, tuple(dims), method, scratch_bytes=scratch)
        yield Draft(group, grid, (step,), {}, scratch, waves * spent)


def ways(base: Attend, features: int, columns: int, target: Target) -> Iterator[Attend]:
    """`base` with each instruction that its operands allow, and all ways to cut that a thread's registers have room for."""
    for block, chunk, depth in itertools.product(BLOCKS, CHUNKS, DEPTHS):
        if block // 16 * (chunk // 8 + columns // 8) * 4 <= MOST_SUMS:
            yield msgspec.structs.replace(base, block_m=block, chunk=chunk, depth=depth)
    along = tuple(o.major for o in (base.query, base.key, base.value))
    copied = all(o.copy == "async" for o in (base.query, base.key, base.value))
    if "wgmma" not in target.instructions or along != ("k", "k", "mn") or not copied:
        return
    if features not in GROUP_SIZES or columns not in GROUP_SIZES:
        return
    if target.threads // target.warp != 4 * GROUPS:
        return
    for down, chunk, depth in itertools.product((1, GROUPS), GROUP_CHUNKS, GROUP_DEPTHS):
        if down == 1 or depth > 2:  # those of one block share a ring
            yield msgspec.structs.replace(
                base, block_m=64 * down, chunk=chunk, depth=depth, instruction="wgmma"
            )
