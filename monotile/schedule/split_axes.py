"""Axes of streamed products, split where their readers then share their tasks (`transform/layout/split_axes.py`): a rotary embedding, the
row that it writes into a cache, a gate beside what it is multiplied with."""

import functools

from monotile.choice.digest import digest_program, digest_statements
from monotile.ir.program import Compute, Program, statements
from monotile.kernels.draft import Context
from monotile.kernels.group import single
from monotile.plan.streams import streams
from monotile.schedule.tiles import cut
from monotile.schedule.tree import build, seconds
from monotile.targets.target import Target
from monotile.transform.layout.split_axes import split_axes


def split_streamed_axes(program: Program, target: Target, context: Context) -> Program:
    """`program` with an axis of its streamed products split, of all of them, if the whole schedule is faster with that, by the cost model:
    a stage less is a barrier less only where no other one is left beside it."""
    products, now = list[Compute](), program
    for s in statements(program.body) if context.streamed else ():
        if isinstance(s, Compute) and _streams(s, context):
            split = split_axes(now, s)
            products += [s] if split is not None else []
            now = split or now
    if not products:
        return program
    ways = {False: program, True: now}
    taken = context.whether(
        "split axes",
        lambda way: seconds(build(ways[way], context), target),
        shape=functools.partial(digest_statements, products, context.tables),
        around=lambda: digest_program(program, 0),
    )
    return ways[taken]


def _streams(c: Compute, context: Context) -> bool:
    """Whether a stage of `c` alone would stream its weights."""
    draft = cut(single(c), context) if c.reduce else None
    return draft is not None and any(map(streams, draft.steps))
