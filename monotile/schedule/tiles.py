"""Cuts groups into tasks: every family offers candidates, and the cost model ranks them (Roller)."""

import itertools
import math
from collections.abc import Iterator

from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.kernels.registry import families_for, suits
from monotile.schedule.forms import form, renamed
from monotile.schedule.keys import digest_groups, draft_value
from monotile.schedule.rows import cut_rows


def cut(group: Group, context: Context, within: float = math.inf) -> Draft | None:
    """The best way to cut `group` into tasks, or None if none fits on-chip memory. within: seconds; None may be returned if all ways are
    slower."""
    if group in context.drafts:
        return context.drafts[group]
    if group.matched:
        return _cut(group, context, within)
    known = form(group, context)
    found = _cut(known.first, context, within)
    if found is None or known.first == group:
        return found
    own = renamed(found, group, known.names)
    if known.first in context.drafts:
        context.drafts[group] = own
    return own


def _cut(group: Group, context: Context, within: float) -> Draft | None:
    if group in context.drafts:
        return context.drafts[group]
    if context.chooser.wants_all:
        within = math.inf
    if within <= context.slower.get(group, 0.0):
        return None
    found = context.choose(
        "cut",
        _ways(group, context, within),
        shape=lambda: digest_groups(context, group),
        cost=lambda d: d.seconds,
        value=draft_value,
    )
    if found is None and within < math.inf:
        context.slower[group] = within
    elif found is None or found.seconds <= within:
        context.drafts[group] = found
    return found


def _ways(group: Group, context: Context, within: float) -> Iterator[Draft]:
    if len(group.steps) > 1:
        yield from cut_rows(group, context, within)
    every = list(group.statements())
    for family in families_for(group):
        ways = (d for d in family.cut(group, context) if suits(d.steps[0], every, context.target))
        first = next(ways, None)
        if first is not None:
            yield from itertools.chain((first,), ways)
            if family.exclusive:
                return
