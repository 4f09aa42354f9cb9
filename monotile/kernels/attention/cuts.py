"""Softmax-weighted sums as one stage: streamed along the keys, with scores that never leave a worker's registers, or by rows."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from monotile.analysis.contraction import contraction
from monotile.analysis.uses import mentions
from monotile.ir.program import Compute, Program, used
from monotile.kernels.attention.match import Attention, attention
from monotile.kernels.common import cost
from monotile.kernels.matmul.cost import attend_seconds
from monotile.kernels.matmul.memory import attend_bytes
from monotile.kernels.matmul.product import product
from monotile.plan.nodes import Attend, Dim, Operand, Step
from monotile.schedule.groups import Group, Node, unite
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


def join_attention(
    nodes: list[Node], program: Program, target: Target, fits: Callable[[Group], bool]
) -> list[Node]:
    """`nodes` with everything that makes a softmax-weighted sum in one group, where nobody else reads what it makes on the way.

    In 16 bits on tensor cores that is one streamed step. Elsewhere tasks hold some rows of scores, if the scores are too
    large for the caches to keep and such a task fits on chip.
    """
    computes = {
        s.out.name: s
        for node in nodes
        if isinstance(node, Group) and len(node.steps) == 1
        for s in node.steps[0]
        if isinstance(s, Compute)
    }
    uses = mentions(program)
    for node in list(nodes):
        if not isinstance(node, Group) or len(node.steps) != 1:
            continue
        result, *after = node.steps[0]
        found = attention(result, computes) if isinstance(result, Compute) else None
        if found is None:
            continue
        inner = {s.out.name for s in found.inner}
        parts = [n for n in nodes if isinstance(n, Group) and n.tensors & inner]
        made = {name for n in parts for name in n.tensors}
        within = Counter(t.name for s in (*found.inner, result) for t in used(s))
        if made != inner or any(uses[name] != within[name] for name in inner):
            continue
        if "mma.sync" in target.instructions and _sides(found, target) is not None:
            waits = node.waits.union(*(n.waits for n in parts))
            whole = Group(((*found.inner, result, *after),), (), waits, streamed=True)
        elif found.products.out.nbytes > target.l2_bytes * target.model.common.kept:
            whole = _united([*parts, node])
        else:
            continue
        if whole is not None and fits(whole):
            nodes = [whole if n is node else n for n in nodes if n not in parts]
    return nodes


def _united(parts: list[Group]) -> Group | None:
    whole: Group | None = parts[0]
    for part in parts[1:]:
        whole = unite(whole, part) if whole is not None else None
    return whole


def _sides(found: Attention, target: Target) -> tuple[Operand, Operand, Operand] | None:
    """How queries, keys and values are read; None where tensor cores cannot take them."""
    scores, mixture = (product(s, {}, target) for s in (found.products, found.result))
    if scores is None or mixture is None or len(found.products.reduce) != 1:
        return None
    if not (scores.half and mixture.half and scores.dtype is mixture.dtype):
        return None
    if found.result.axes[found.column].extent % 8:
        return None
    first = contraction(found.products)
    second = contraction(found.result)
    assert first is not None
    assert second is not None
    query, key = scores.left, scores.right
    if first.left != found.queries:
        query, key = key, query
    value = mixture.right if second.right == found.values else mixture.left
    return query, key, value


def cut_attention(group: Group, target: Target) -> Iterator[tuple[float, Step, tuple[int, ...]]]:
    """(seconds of the stage, its step, its grid) of every way to cut a streamed group."""
    computes = {s.out.name: s for s in group.statements() if isinstance(s, Compute)}
    names = tuple(s.out.name for s in group.statements())
    found = next(a for s in computes.values() if (a := attention(s, computes)) is not None)
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
        query=query, key=key, value=value,
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
        yield waves * spent, Step(names, tuple(dims), method, scratch_bytes=scratch), grid


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
