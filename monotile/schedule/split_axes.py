"""Splits axes of streamed products so that their readers can join their tasks (`transform/layout/split_axes.py`): a rotary embedding,
the row written into a cache, a gate and the value that it multiplies."""

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
    """`program` with an axis of all its streamed products split, if the cost model predicts a faster whole schedule: one stage less
    saves a barrier only where no other stage remains beside it."""
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
    """Whether `c` as a stage of its own would stream its weights."""
    draft = cut(single(c), context) if c.reduce else None
    return draft is not None and any(map(streams, draft.steps))
