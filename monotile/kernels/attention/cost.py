"""Cost model of a softmax-weighted sum: copies, tensor cores, exponentials, and the combination of the slices."""

from monotile.kernels.attention.method import Attend
from monotile.kernels.common.cost import chip_seconds
from monotile.kernels.common.panels import line_use
from monotile.targets.model import fitted
from monotile.targets.target import Target


def attend_seconds(
    a: Attend, features: int, columns: int, keys: int, after: float, size: int, target: Target
) -> float:
    """Seconds of one block of rows against all keys. after: operations after the product for each score. size: bytes of an element."""
    model, paths = fitted(target.model.attention), fitted(target.model.matmul)
    slices = a.slices(target.threads // target.warp)
    moved = (
        a.block_m * features / line_use(a.query, a.padded, features, size, paths)
        + keys * features / line_use(a.key, a.chunk, features, size, paths)
        + keys * columns / line_use(a.value, columns, a.chunk, size, paths)
    ) * size / target.worker_bandwidth  # fmt: skip
    rounds = -(-keys // (a.chunk * slices))  # of each slice
    scores = rounds * a.chunk * slices * a.padded
    rate = target.flops[f"mma{8 * size}"] / target.workers / a.passes
    products = 2 * scores * (features + columns) / rate
    powers = scores * after / (target.flops["fma"] / 2 / target.workers)
    if a.instruction == "wgmma":
        work = _overlapping(products / model.group_rate, powers, rounds, model.hidden)
        work += rounds * model.group_chunk * target.latency_seconds
    else:
        work = products / (model.wide_rate if size == 4 else model.warp_rate) + powers
    merged = 2 * chip_seconds(slices * a.block_m * columns, target)
    alone = a.direct and a.depth == 1  # no load is in flight while a chunk is used
    waits = rounds if alone else 1 + 0.5 * (-(-rounds // _ahead(a, slices)) - 1)
    waits += not a.direct  # for the queries, which are copied before the keys
    first = (a.block_m + slices * a.chunk) * features * size / target.worker_bandwidth
    return target.latency_seconds * waits + first + max(moved, work) + merged


def _ahead(a: Attend, slices: int) -> int:
    """Chunks in flight at a time, besides the one in use."""
    if a.direct:
        return a.depth
    return a.depth - (2 if a.instruction == "wgmma" and slices == 1 else 1)


def _overlapping(products: float, powers: float, rounds: int, hidden: float) -> float:
    """Seconds of two kinds of work of which the fraction `hidden` of the shorter overlaps with the longer: the products of one chunk, or
    of one warpgroup, run while others compute exponentials. The first chunk's scores and the last one's sums overlap with nothing."""
    return products + powers - hidden * min(products, powers) * (1 - 1 / rounds)
