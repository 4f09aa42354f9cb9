"""Products fused with row-wise followers, such as a normalisation: a task has whole rows."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from monotile.ir.program import Compute
from monotile.kernels.common.moments import moments
from monotile.kernels.common.product import Product
from monotile.kernels.common.register_rows import MOST_WORDS, RowWork, even
from monotile.kernels.common.rowwise import Rowwise, rowwise
from monotile.kernels.group import Group
from monotile.kernels.matmul.method import Matmul, MatmulRows
from monotile.targets.target import Target

VECTOR = 4  # sums that a lane takes at once, at most: 16 bytes
LEAST_LANES = 8  # which so read a line of banks contiguously, and store whole sectors


class Share(NamedTuple):
    """How lanes share a row of sums: see `HoldRows`."""

    lanes: int
    vector: int


def finished_rows(group: Group, p: Product, target: Target) -> Rowwise | None:
    """`group`, which begins with the product `p`, as rows of its sums; None where it does not work row by row, or its rows are not the
    product's."""
    anchor, *rest = group.statements()
    every = [s for s in (anchor, *rest) if isinstance(s, Compute)]
    if not target.has.lockstep or len(every) <= len(rest) or p.grain_m or p.grain_n:
        return None
    found = rowwise(every, every[0])
    whole = found is not None and p.n == tuple(range(found.rows, len(anchor.axes)))
    return found if whole else None


def shares(work: RowWork, last: int, threads: int, rows: int) -> Iterator[Share]:
    """The ways to divide rows of `work` among so many threads. last: extent of the innermost axis of a row."""
    vector = math.gcd(VECTOR, last)
    lanes = 32
    while lanes >= LEAST_LANES or (lanes >= 1 and lanes * vector >= work.length):
        share = Share(lanes, vector)
        rounds = -(-rows // (threads // lanes))
        if work.words(share, rounds) <= MOST_WORDS:
            yield share
        lanes //= 2


def finish_seconds(work: RowWork, share: Share, rows: int, threads: int, target: Target) -> float:
    """Seconds of the row-wise epilogue of `rows` rows whose sums are on chip: groups of lanes process them in rounds."""
    groups = threads // share.lanes
    return -(-rows // groups) * work.further_round(share, groups, target)


def with_rows(c: Matmul, found: Rowwise, share: Share, target: Target) -> MatmulRows:
    """The method `c` of a step with the row-wise epilogue `found`."""
    given = {name: getattr(c, name) for name in c.__struct_fields__}
    once = tuple(moments(found).items())
    rows, span, order = found.names
    return MatmulRows(
        **given, result=found.listed.index(found.given), lanes=share.lanes, vector=share.vector, rows=rows, span=span, order=order,
        moments=once if even(math.prod(span), share, target) else (),
    )  # fmt: skip
