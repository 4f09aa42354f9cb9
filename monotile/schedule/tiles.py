"""Groups cut into tasks: every family offers its ways, and the cost model ranks them (Roller)."""

import itertools
from collections.abc import Iterator

from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.kernels.registry import families_for, suits
from monotile.schedule.keys import digest_groups, draft_value
from monotile.schedule.rows import cut_rows


def cut(group: Group, context: Context) -> Draft | None:
    """The best way to cut `group` into tasks, or None if none fits the on-chip memory."""
    if group not in context.drafts:
        context.drafts[group] = context.choose(
            "cut",
            _ways(group, context),
            shape=lambda: digest_groups(context, group),
            cost=lambda d: d.seconds,
            value=draft_value,
        )
    return context.drafts[group]


def _ways(group: Group, context: Context) -> Iterator[Draft]:
    if len(group.steps) > 1:
        yield from cut_rows(group, context)
    every = list(group.statements())
    for family in families_for(group):
        ways = (d for d in family.cut(group, context) if suits(d.steps[0], every, context.target))
        first = next(ways, None)
        if first is not None:
            yield from itertools.chain((first,), ways)
            if family.exclusive:
                return
