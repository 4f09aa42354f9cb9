"""How long a softmax-weighted sum takes: copies, tensor cores, powers, and putting the slices together."""

from monotile.kernels.attention.method import Attend
from monotile.kernels.common.cost import SHARED_SPEEDUP
from monotile.kernels.common.panels import line_use
from monotile.targets.target import Target

# Attention by wgmma, fitted to 197, 384 and 1500 keys in chunks of 64 to 160 (H100; 15 % off at most).
GROUP_RATE, WARP_RATE = 0.8, 0.25  # of the rate of tensor cores; the latter by mma.sync
GROUP_CHUNK = 0.35  # of the latency: what a chunk takes, however long it is
HIDDEN = 0.8  # of the shorter of products and powers


def attend_seconds(
    a: Attend, features: int, columns: int, keys: int, after: float, target: Target
) -> float:
    """One block of rows against all keys. after: operations that a score costs."""
    slices = a.slices(target.threads // target.warp)
    size = 2
    moved = (
        a.block_m * features / line_use(a.query, a.block_m, features, size)
        + keys * features / line_use(a.key, a.chunk, features, size)
        + keys * columns / line_use(a.value, columns, a.chunk, size)
    ) * size / target.worker_bandwidth  # fmt: skip
    rounds = -(-keys // (a.chunk * slices))  # of each slice
    scores = rounds * a.chunk * slices * a.block_m
    products = 2 * scores * (features + columns) / (target.flops["mma16"] / target.workers)
    powers = scores * after / (target.flops["fma"] / 2 / target.workers)
    if a.instruction == "wgmma":
        work = _overlapping(products / GROUP_RATE, powers, rounds)
        work += rounds * GROUP_CHUNK * target.latency_seconds
    else:
        work = products / WARP_RATE + powers
    merged = 2 * slices * a.block_m * columns * 4 / (SHARED_SPEEDUP * target.worker_bandwidth)
    ahead = a.depth - (2 if a.instruction == "wgmma" and slices == 1 else 1)
    waits = 1 + 0.5 * (-(-rounds // ahead) - 1)
    first = (a.block_m + slices * a.chunk) * features * size / target.worker_bandwidth
    return target.latency_seconds * (1 + waits) + first + max(moved, work) + merged


def _overlapping(products: float, powers: float, rounds: int) -> float:
    """Of the shorter of both most is hidden: the products of one chunk, and of one warpgroup, go on while others make powers.
    A first chunk's scores and a last one's sums hide behind nothing."""
    return products + powers - HIDDEN * min(products, powers) * (1 - 1 / rounds)
